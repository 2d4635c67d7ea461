// SPDX-License-Identifier: MIT
#pragma once
// Merges adapters of tensors of all experts (PEFT's target_parameters) into a base that holds such
// a tensor, or one tensor an expert.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "tessera/checkpoint/adapter.h"
#include "tessera/checkpoint/huggingface.h"

namespace tessera::programs {

class ExpertsMerge {
 public:
  // Keeps references. Throws Error(kDataLoss) for an adapter of a tensor that the base lacks or
  // holds as MXFP4, and without its other matrix.
  ExpertsMerge(const AdapterDirectory& adapter, const HuggingFaceDirectory& base);

  // Whether it changes the base's weight of this stored name.
  bool changes(const std::string& stored) const { return places_.contains(stored); }
  // The weight with scale B A added, computed in fp32, in its own dtype.
  at::Tensor merged(const at::Tensor& weight, const std::string& stored);

 private:
  // What a weight of the base is of the adapted tensor [experts, out, in].
  struct Place {
    std::string module;           // of the adapter, in its file
    bool in_out = false;          // the base holds [experts, in, out]
    int64_t expert = -1;          // -1: all
    int64_t part = 0, parts = 1;  // of the outputs
  };
  struct Factors {
    at::Tensor a, b;  // [experts, r, in], [experts, out, r], fp32
  };
  void place(const std::string& module);
  const Factors& factors_of(const std::string& module);

  const AdapterDirectory& adapter_;
  const HuggingFaceDirectory& base_;
  std::map<std::string, Place> places_;  // by the base's stored names
  std::map<std::string, Factors> read_;  // of the layer at hand
};

}  // namespace tessera::programs
