// SPDX-License-Identifier: MIT
#pragma once
// An exclusive resource of a thread that is released while the thread blocks on other ranks.

namespace tessera {

// A resource that a rank releases while it blocks on other ranks, which may need it.
//
// Per thread, not part of BlockContext: SeededGenerators holds it around a user's forward(), which
// may wait in a communicator of its own, where no context arrives. Without it such ranks would wait
// for each other until the timeout.
class Turn {
 public:
  virtual ~Turn() = default;
  virtual void give_up() = 0;
  virtual void take_back() = 0;

  // The calling thread's resource; null: none.
  static Turn*& of_this_thread() {
    static thread_local Turn* turn = nullptr;
    return turn;
  }
};

// Releases the calling thread's resource in its scope.
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
