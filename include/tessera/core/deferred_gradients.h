// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Weight gradients that the backward pass of a block leaves for later, so that the gradient of the
/// block's input goes on at once.
#include <functional>
#include <utility>
#include <vector>

namespace tessera {

/// Of one block and one micro-batch. A strategy makes it, the block's forward promises, the block's
/// backward adds, and the strategy runs what was added.
class DeferredGradients {
 public:
  /// For forward() with gradients: its backward will add() all work on gradients of parameters and
  /// touch none of them itself.
  void promise() { promised_ = true; }
  bool promised() const { return promised_; }  ///< whether backward defers
  /// work adds to .grad() of the block's parameters and may not read their values, which may be
  /// elsewhere by then. It keeps what it needs, but not this object.
  void add(std::function<void()> work) { work_.push_back(std::move(work)); }
  /// What was added, in order; frees what it kept.
  void run() {
    for (auto& work : std::exchange(work_, {})) std::exchange(work, nullptr)();
  }

 private:
  bool promised_ = false;
  std::vector<std::function<void()>> work_;
};

}  // namespace tessera
