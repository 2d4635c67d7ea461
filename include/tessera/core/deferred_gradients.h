// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Deferred weight gradients: work that a block's backward leaves for later, so that the gradient
/// of its input is ready earlier.
#include <functional>
#include <utility>
#include <vector>

namespace tessera {

/// Deferred weight-gradient work of one block and one micro-batch. A strategy creates it, the
/// block's forward promises, its backward adds, and the strategy runs the work.
class DeferredGradients {
 public:
  /// Called by forward() with gradients: backward will add() all work on parameters' gradients and
  /// write none of them itself.
  void promise() { promised_ = true; }
  bool promised() const { return promised_; }  ///< whether backward defers
  /// Defers work, which accumulates into .grad() of the block's parameters. It must not read
  /// parameter values, which may be resharded by then. It owns what it needs, but not this object.
  void add(std::function<void()> work) { work_.push_back(std::move(work)); }
  /// Runs the added work in order and frees its tensors.
  void run() {
    for (auto& work : std::exchange(work_, {})) std::exchange(work, nullptr)();
  }

 private:
  bool promised_ = false;
  std::vector<std::function<void()>> work_;
};

}  // namespace tessera
