// SPDX-License-Identifier: MIT
#pragma once
// Several tensors as the one that goes from block to block.
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "tessera/core/micro_batch.h"
#include "tessera/core/not_copied.h"

namespace tessera {

class Packing {
 public:
  // 1-D and of the widest dtype: the shapes and dtypes, and then the elements of each. Throws
  // Error(kInvalidArgument), which names the block, for a tensor that is undefined, not floating,
  // or of more than six dimensions. Gradients go through.
  at::Tensor operator()(const std::string& block, const std::vector<at::Tensor>& tensors);

 private:
  std::map<std::vector<int64_t>, at::Tensor> headers_;  // on the device
};

// While it lives, this thread knows what was packed without memory (meta), where a header says
// nothing: by the number of elements.
class PackedWithoutMemory : NotCopied {
 public:
  PackedWithoutMemory();
  ~PackedWithoutMemory();

  void add(int64_t numel, const std::vector<int64_t>& numbers);
  // Throws Error(kInvalidArgument) for a number of elements that two packs of other shapes have.
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
  // Views of what was packed. The shapes are read once for all micro-batches of the same shapes, so
  // that no later step waits for a device; on the CPU every time.
  std::vector<at::Tensor> operator()(const at::Tensor& packed, const MicroBatch& micro_batch);

 private:
  std::map<std::vector<int64_t>, std::vector<int64_t>> headers_;
};

}  // namespace tessera
