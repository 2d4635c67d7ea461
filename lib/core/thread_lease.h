// SPDX-License-Identifier: MIT
#pragma once
// An exclusive resource of a thread that is released while the thread blocks on other ranks.

namespace tessera {

// A resource that a rank releases while it blocks on other ranks, which may need it.
//
// Per thread, not part of BlockContext: SeededGenerators holds it around a user's forward(), which
// may wait in a communicator of its own, where no context arrives. Without it such ranks would wait
// for each other until the timeout.
class ThreadLease {
 public:
  virtual ~ThreadLease() = default;
  virtual void give_up() = 0;
  virtual void take_back() = 0;

  // The calling thread's resource; null: none.
  static ThreadLease*& of_this_thread() {
    static thread_local ThreadLease* lease = nullptr;
    return lease;
  }
};

// Releases the calling thread's resource in its scope.
class ScopedLeaseRelease {
 public:
  ScopedLeaseRelease() : lease_(ThreadLease::of_this_thread()) {
    if (lease_ != nullptr) lease_->give_up();
  }
  ~ScopedLeaseRelease() {
    if (lease_ != nullptr) lease_->take_back();
  }
  ScopedLeaseRelease(const ScopedLeaseRelease&) = delete;
  ScopedLeaseRelease& operator=(const ScopedLeaseRelease&) = delete;

 private:
  ThreadLease* const lease_;
};

}  // namespace tessera
