// SPDX-License-Identifier: MIT
#pragma once
// The tensors of a checkpoint, of a Hugging Face directory, of adapters or of one safetensors file.
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
  virtual at::Tensor read(const std::string& name) const = 0;  // whole, on the CPU
  struct Verified {
    std::vector<std::string> defects, remarks;  // a sentence each
    const char* meaning;                        // of no defects
  };
  virtual Verified verify() const = 0;  // reads every byte
  virtual const Checkpoint* checkpoint() const { return nullptr; }
};

// A path may also be a run's output directory: its newest valid checkpoint; what was skipped is
// appended to `notices`. Throws Error(kDataLoss) when it is none of these.
std::unique_ptr<TensorSet> open_tensors(const std::string& path, std::vector<std::string>& notices);

}  // namespace tessera::programs
