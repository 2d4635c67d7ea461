// SPDX-License-Identifier: MIT
#pragma once
// Rows between two blocks whose sums over ranks the later block waits for, part by part.
#include <functional>
#include <utility>
#include <vector>

namespace tessera {

// A block whose forward() waits for what the block before has left.
class TakesUnfinishedRows {
 public:
  virtual ~TakesUnfinishedRows() = default;
};

// Of one micro-batch, whose blocks run forward one after the other in one thread.
class UnfinishedRows {
 public:
  // One for each of equally large parts of the rows, in order: makes the current stream wait for it.
  using Waits = std::vector<std::function<void()>>;

  // For strategies, before every block: whether the next one takes what this one leaves.
  void allow(bool allowed) { allowed_ = allowed; }
  bool allowed() const { return allowed_; }
  void leave(Waits waits) { waits_ = std::move(waits); }
  // What the block before has left; nothing is kept.
  Waits take() { return std::exchange(waits_, {}); }
  // For a block that wants all of its rows at once.
  void finish() {
    for (const auto& wait : take()) wait();
  }

 private:
  bool allowed_ = false;
  Waits waits_;
};

}  // namespace tessera
