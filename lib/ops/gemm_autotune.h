// SPDX-License-Identifier: MIT
#pragma once
#include <atomic>
#include <cstdint>

#include "tessera/core/not_copied.h"

namespace tessera::ops {

// Products of this process that ran during GEMM autotuning; 0 in builds without CUDA.
int64_t products_in_tuning();

// While it lives, autotuning trials run at once, also for unfamiliar sizes: a recording follows,
// which fixes the algorithms.
class TuneEagerly : NotCopied {
 public:
  TuneEagerly() { ++alive_; }
  ~TuneEagerly() { --alive_; }
  static bool asked_for() { return alive_ > 0; }

 private:
  inline static std::atomic<int> alive_ = 0;  // atomic: autograd runs products on its own threads
};

}  // namespace tessera::ops
