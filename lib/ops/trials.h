// SPDX-License-Identifier: MIT
#pragma once
#include <atomic>
#include <cstdint>

#include "tessera/core/not_copied.h"

namespace tessera::ops {

// How many products of this process ran while it was still being found out which algorithm is the
// fastest for them; 0 in builds without CUDA.
int64_t products_on_trial();

// While one lives, trials are not spread over many calls, and sizes unlike all before are tried as
// others are: what runs is to be recorded, and stays as it is.
class TrialsAtOnce : NotCopied {
 public:
  TrialsAtOnce() { ++alive_; }
  ~TrialsAtOnce() { --alive_; }
  static bool asked_for() { return alive_ > 0; }

 private:
  inline static std::atomic<int> alive_ = 0;  // autograd runs products on threads of its own
};

}  // namespace tessera::ops
