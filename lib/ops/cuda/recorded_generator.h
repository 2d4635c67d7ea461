// SPDX-License-Identifier: MIT
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "tessera/core/not_copied.h"

namespace tessera::ops::cuda {

// While it lives, LibTorch's kernels that are recorded draw from the seed that lies in memory:
// int64 [2], the seed and a 0, as RecordedSeeds has them. They draw what they would draw with a
// SeededDevice of this seed.
class RecordedGenerator : NotCopied {
 public:
  explicit RecordedGenerator(const at::Tensor& seed);
  ~RecordedGenerator();

 private:
  at::Generator generator_;
  at::Generator before_;
};

}  // namespace tessera::ops::cuda
