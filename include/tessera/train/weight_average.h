// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// An exponential moving average of a model's weights (Polyak and Juditsky 1992).
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/backends/strategy.h"

namespace tessera {

/// Exponential moving average of a model's weights: average = decay * average + (1 - decay) *
/// weights after every update, in fp32. Sharded and placed like the strategy's master weights, 4
/// bytes per element. Excludes frozen parameters and buffers. Used by the strategy's thread.
class WeightAverage {
 public:
  /// Starts with the current weights. The strategy is attached and outlives this. Throws
  /// Error(kInvalidArgument) unless 0 <= decay < 1.
  WeightAverage(Strategy& strategy, double decay);

  /// Updates the average; call it after optimizer_step(). skip: the step's; non-zero leaves the
  /// average unchanged. Waits for an offloaded update.
  void update(const at::Tensor& skip = {});

  /// Scope in which the strategy's weights are the average, e.g. to evaluate, export or copy_to().
  /// Restores the weights at its end, whatever happened in between. Collective. Drops a gradient
  /// that no optimizer_step() has used, like Strategy::state_restored().
  class Swapped {
   public:
    /// Swaps the average in; the average outlives the scope.
    explicit Swapped(WeightAverage& average);
    ~Swapped() noexcept(false);
    Swapped(const Swapped&) = delete;
    Swapped& operator=(const Swapped&) = delete;

   private:
    WeightAverage& average_;
    int exceptions_;  ///< exceptions in flight at construction
  };

  /// This rank's part of the average, of kind "average", to save and load with Strategy::state()
  /// under any layout.
  std::vector<StateTensor> state();
  int64_t bytes() const;  ///< bytes of this rank's part

 private:
  /// Elements of an average that split masters cannot hold (tessera/core/split_master.h).
  struct Unsettled {
    at::Tensor places, values;
  };
  std::vector<StateTensor> weights() const;
  void swap();

  Strategy& strategy_;
  double decay_;
  std::vector<at::Tensor> averages_;  ///< by weights()
  std::vector<Unsettled> unsettled_;  ///< by weights(), while the weights are the average
};

}  // namespace tessera
