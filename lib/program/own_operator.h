// SPDX-License-Identifier: MIT
#pragma once
// Operators of tessera that stand in a graph where rewrites put them. A file cannot name them.
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string_view>
#include <vector>

namespace tessera {
struct BlockContext;
struct MicroBatch;
class TensorAxis;
}  // namespace tessera

namespace tessera::program {

// State of a run that no value of the graph holds.
struct RunContext {
  at::Device device = at::kCPU;             // factories make their tensors there
  const MicroBatch* micro_batch = nullptr;  // packed rows and padding; null: neither
  const BlockContext* block = nullptr;      // null: an evaluation on a single rank
  const TensorAxis* axis = nullptr;         // of a graph that ranks share; null: one rank
  // Addresses of the block's parts of a key/value cache, one for each of its attentions.
  const char* cache_keys = nullptr;
  // Tensors that such an attention forms once, by the same numbers; null: it forms them each time.
  std::vector<at::Tensor>* kept = nullptr;
  // Results of ATen's operators with more elements are refused before they are made; 0: none are.
  int64_t most_elements = 0;
};

struct OwnOperator {
  std::string_view target;  // "tessera.rms_norm"
  // The node's arguments in order: tensors, numbers, lists of numbers, None.
  at::Tensor (*run)(const std::vector<c10::IValue>& arguments, const RunContext& context) = nullptr;
  // In place of run, where a list comes out.
  std::vector<at::Tensor> (*run_list)(const std::vector<c10::IValue>& arguments,
                                      const RunContext& context) = nullptr;
};

}  // namespace tessera::program
