// SPDX-License-Identifier: MIT
#pragma once
// What one thread of the process has at a time, and ranks that are threads of it.

namespace tessera {

// What a thread has for itself, and must not keep while it waits for ranks that may want it too.
//
// Each thread has one, and it is not part of a BlockContext: SeededGenerators holds it around a
// user's forward(), which may wait in a communicator of its own. No context reaches that wait.
// Without the channel such ranks wait for each other until the timeout.
class Turn {
 public:
  virtual ~Turn() = default;
  virtual void give_up() = 0;
  virtual void take_back() = 0;

  // That of the calling thread; null: it has none.
  static Turn*& of_this_thread() {
    static thread_local Turn* turn = nullptr;
    return turn;
  }
};

// While it lives the calling thread has given up its turn.
class TurnGivenUp {
 public:
  TurnGivenUp() : turn_(Turn::of_this_thread()) {
    if (turn_ != nullptr) turn_->give_up();
  }
  ~TurnGivenUp() {
    if (turn_ != nullptr) turn_->take_back();
  }
  TurnGivenUp(const TurnGivenUp&) = delete;
  TurnGivenUp& operator=(const TurnGivenUp&) = delete;

 private:
  Turn* const turn_;
};

}  // namespace tessera
