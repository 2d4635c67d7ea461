// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Stopping when an evaluation's loss no longer falls.
#include <cstdint>
#include <limits>

namespace tessera {

/// When EarlyStopping stops.
struct EarlyStoppingConfig {
  int64_t patience = 3;  ///< evaluations in a row that may bring no improvement; at least 1
  double min_delta = 0;  ///< by which a loss must fall below the best one to be an improvement
};

/// Losses must be the same on every rank, as EvalReport::loss is.
class EarlyStopping {
 public:
  /// Throws Error(kInvalidArgument) for a patience below 1 or a min_delta that is negative.
  explicit EarlyStopping(const EarlyStoppingConfig& config);
  /// Whether to stop. A loss that is NaN is no improvement.
  bool observe(double loss);

  /// What a checkpoint keeps of EarlyStopping.
  struct State {
    double best = std::numeric_limits<double>::infinity();  ///< the least loss so far
    int64_t bad = 0;                                        ///< evaluations since the best one
    bool operator==(const State&) const = default;          ///< compares both members
  };
  const State& state() const { return state_; }         ///< the state after the losses so far
  void restore(const State& state) { state_ = state; }  ///< continues from this state

 private:
  EarlyStoppingConfig config_;
  State state_;
};

}  // namespace tessera
