// SPDX-License-Identifier: MIT
#pragma once
// Tensors of a checkpoint, a Hugging Face directory, adapters, or one safetensors file.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::programs {

struct TensorInfo {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  bool operator==(const TensorInfo&) const = default;
};

class TensorSet {
 public:
  virtual ~TensorSet() = default;
  virtual const std::string& path() const = 0;
  virtual const std::map<std::string, TensorInfo>& tensors() const = 0;
  virtual at::Tensor read(const std::string& name) const = 0;  // unsharded, on the CPU
  struct Verified {
    std::vector<std::string> defects, remarks;  // one sentence each
    const char* meaning;                        // meaning of an empty `defects`
  };
  virtual Verified verify() const = 0;  // reads every byte
  virtual const Checkpoint* checkpoint() const { return nullptr; }
};

// path: may also be a run's output directory, whose newest valid checkpoint is opened; skipped ones
// are appended to `notices`. Throws Error(kDataLoss) for other paths.
std::unique_ptr<TensorSet> open_tensors(const std::string& path, std::vector<std::string>& notices);

}  // namespace tessera::programs
