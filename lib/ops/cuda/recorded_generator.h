// SPDX-License-Identifier: MIT
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "tessera/core/not_copied.h"

namespace tessera::ops::cuda {

// While it lives, captured LibTorch kernels draw from the seed in memory: int64 [2], the seed and a
// 0, as in RecordedSeeds. They draw the same numbers as with a SeededDevice of this seed.
class RecordedGenerator : NotCopied {
 public:
  explicit RecordedGenerator(const at::Tensor& seed);
  ~RecordedGenerator();

 private:
  at::Generator generator_;
  at::Generator before_;
};

}  // namespace tessera::ops::cuda
