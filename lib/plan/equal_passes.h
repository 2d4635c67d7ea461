// SPDX-License-Identifier: MIT
#pragma once
// Recorded passes of equal blocks: the first one runs, the others repeat its memory and operations.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lib/plan/step_memory.h"
#include "tessera/comm/communication_ledger.h"
#include "tessera/model/model_spec.h"

namespace tessera {

// Memory (bytes above those at its begin) and operations of a block's pass.
struct BlockPass {
  struct Part {
    int64_t most = 0;           // peak while it runs
    CommunicationLedger calls;  // indices of starts and waits are relative to the pass
  };
  Part forward, backward;
  std::vector<int64_t> shape;  // shape of the output
  at::ScalarType dtype = at::kFloat;
  // Tensors that forward hands to its recomputation, beside the output.
  struct Form {
    std::vector<int64_t> sizes, strides;
    at::ScalarType dtype;
  };
  std::vector<std::vector<std::optional<Form>>> handed;  // nullopt: undefined
  int64_t kept = 0;         // kept from forward to backward, beside the output
  int64_t lasting = 0;      // kept for ever: tables that the block's first pass makes
  bool gives_back = false;  // the input's gradient shares the output gradient's memory
  bool known = false;       // recorded: forward, and backward if there is one
};

// Recorded passes, shared by dry runs of one model in different layouts.
// [Note: equal passes]
// Blocks between the first and the last with equal costs (BlockCost) run alike for inputs of the
// same form in the same mode. The first pass of such a kind runs on meta tensors. The others take
// the same bytes (peak, and until backward) and call the same operations. Some passes always run:
// those that defer gradients, continue cached rows, or return their input.
class EqualPasses {
 public:
  // context: what passes depend on besides, such as the tensor axis and dtypes.
  BlockPass& pass_of(const std::string& context, const std::vector<int64_t>& key) {
    return passes_[{context, key}];
  }

 private:
  std::map<std::pair<std::string, std::vector<int64_t>>, BlockPass> passes_;
};

// The model with blocks that repeat equal blocks' passes. with_head: includes the last block, whose
// passes are equal among themselves. The reference arguments must outlive the model's blocks.
ModelSpec with_equal_passes(ModelSpec model, EqualPasses& passes, const std::string& context,
                            bool with_head, StepMemory& memory, CommunicationLedger& ledger);

}  // namespace tessera
