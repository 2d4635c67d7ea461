// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Early stopping by evaluation losses.
#include <cstdint>
#include <limits>

namespace tessera {

/// Options of EarlyStopping.
struct EarlyStoppingConfig {
  int64_t patience = 3;  ///< consecutive evaluations allowed without improvement; at least 1
  double min_delta = 0;  ///< smallest decrease below the best loss that is an improvement
};

/// Early stopping of training. Losses must be equal on every rank, like EvalReport::loss.
class EarlyStopping {
 public:
  /// Throws Error(kInvalidArgument) for a patience below 1 or a negative min_delta.
  explicit EarlyStopping(const EarlyStoppingConfig& config);
  /// Adds a loss and returns whether to stop. NaN is no improvement.
  bool observe(double loss);

  /// State of EarlyStopping in a checkpoint.
  struct State {
    double best = std::numeric_limits<double>::infinity();  ///< lowest loss so far
    int64_t bad = 0;                                        ///< evaluations since the best one
    bool operator==(const State&) const = default;          ///< compares both members
  };
  const State& state() const { return state_; }         ///< state after the losses so far
  void restore(const State& state) { state_ = state; }  ///< continues from this state

 private:
  EarlyStoppingConfig config_;
  State state_;
};

}  // namespace tessera
