// SPDX-License-Identifier: MIT
#pragma once
// Several tensors packed into the one that blocks pass on.
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "tessera/core/micro_batch.h"
#include "tessera/core/not_copied.h"

namespace tessera {

class Packing {
 public:
  // Packs into a 1-D tensor of the widest dtype: shapes and dtypes, then elements. Differentiable.
  // Throws Error(kInvalidArgument) with the block's name for a tensor that is undefined, not
  // floating, or of more than six dimensions.
  at::Tensor operator()(const std::string& block, const std::vector<at::Tensor>& tensors);

 private:
  std::map<std::vector<int64_t>, at::Tensor> headers_;  // on the device
};

// Scope in which this thread records packs on meta, where headers have no values, by their number
// of elements.
class PackedWithoutMemory : NotCopied {
 public:
  PackedWithoutMemory();
  ~PackedWithoutMemory();

  void add(int64_t numel, const std::vector<int64_t>& numbers);
  // Shapes and dtypes of the pack. Throws Error(kInvalidArgument) if two packs with this number of
  // elements differ.
  const std::vector<int64_t>& of(int64_t numel) const;
  static PackedWithoutMemory& here();

 private:
  struct Known {
    std::vector<int64_t> numbers;
    bool ambiguous = false;
  };
  std::map<int64_t, Known> known_;
  PackedWithoutMemory* outer_;
};

class Unpacking {
 public:
  // Views of the packed tensors. Shapes are read once per shape of micro-batch, so that no later
  // step synchronises; on the CPU every time.
  std::vector<at::Tensor> operator()(const at::Tensor& packed, const MicroBatch& micro_batch);

 private:
  std::map<std::vector<int64_t>, std::vector<int64_t>> headers_;
};

}  // namespace tessera
