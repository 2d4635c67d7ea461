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

/// average = decay * average + (1 - decay) * weights after every update, in fp32. It is kept as the
/// strategy keeps its master weights: of the same pieces, where they lie, 4 bytes an element of
/// those. Frozen parameters and buffers are not averaged. Used by the strategy's thread.
class WeightAverage {
 public:
  /// Begins with the weights as they are. The strategy is attached and outlives this. Throws
  /// Error(kInvalidArgument) unless 0 <= decay < 1.
  WeightAverage(Strategy& strategy, double decay);

  /// After an optimizer_step(). skip: the step's; non-zero leaves the average as it is. An
  /// offloaded update is waited for.
  void update(const at::Tensor& skip = {});

  /// While it lives the strategy's weights are the average: to evaluate, to export, copy_to(). Then
  /// they are what they were, whatever was done in between. Collective. A gradient that no
  /// optimizer_step() has used is dropped, as by Strategy::state_restored().
  class Swapped {
   public:
    explicit Swapped(WeightAverage& average);  ///< swaps them in; the average outlives it
    ~Swapped() noexcept(false);
    Swapped(const Swapped&) = delete;
    Swapped& operator=(const Swapped&) = delete;

   private:
    WeightAverage& average_;
    int exceptions_;  ///< under way at its making
  };

  /// This rank's part, of kind "average": to be saved and loaded with Strategy::state(), under any
  /// layout.
  std::vector<StateTensor> state();
  int64_t bytes() const;  ///< of this rank

 private:
  /// The few elements of an average that masters cannot hold (tessera/core/split_master.h).
  struct Unsettled {
    at::Tensor places, values;
  };
  std::vector<StateTensor> weights() const;
  void swap();

  Strategy& strategy_;
  double decay_;
  std::vector<at::Tensor> averages_;  ///< by weights()
  std::vector<Unsettled> unsettled_;  ///< the same, while the weights are the average
};

}  // namespace tessera
