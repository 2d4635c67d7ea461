// SPDX-License-Identifier: MIT
#pragma once
// Passes of equal blocks, of which one runs and the others repeat what it took.
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lib/plan/step_memory.h"
#include "tessera/comm/communication_ledger.h"
#include "tessera/model/model_spec.h"

namespace tessera {

// What a pass of a block took, in bytes above what was there when it began, and called.
struct BlockPass {
  struct Part {
    int64_t most = 0;           // while it ran
    CommunicationLedger calls;  // numbers of starts and waits count from the pass
  };
  Part forward, backward;
  std::vector<int64_t> shape;  // of its output
  at::ScalarType dtype = at::kFloat;
  int64_t kept = 0;         // from forward to its backward, beside the output
  int64_t lasting = 0;      // that the block keeps for ever: tables that its first pass makes
  bool gives_back = false;  // the gradient of its input lies where that of its output does
  bool known = false;       // forward, and backward where there is one
};

// Passes that are known, for dry runs of one model that differ in how it is spread. [Note: equal
// passes] Blocks between the first and the last with equal costs (BlockCost) run alike when they
// are given tensors of the same form in the same mode. The first pass of such a kind runs, on
// tensors without memory as any dry run; the others take as many bytes, at most and until their
// backward, and call the same operations. A pass that does not fit this picture always runs: one
// that defers gradients, goes on with rows, or gives back its input.
class EqualPasses {
 public:
  // context: what else passes depend on, the tensor axis and dtypes among them.
  BlockPass& pass_of(const std::string& context, const std::vector<int64_t>& key) {
    return passes_[{context, key}];
  }

 private:
  std::map<std::pair<std::string, std::vector<int64_t>>, BlockPass> passes_;
};

// The model with blocks that repeat what equal ones took. with_head: the last one, too, whose
// passes are equal among themselves. The others outlive the model's blocks.
ModelSpec with_equal_passes(ModelSpec model, EqualPasses& passes, const std::string& context,
                            bool with_head, StepMemory& memory, CommunicationLedger& ledger);

}  // namespace tessera
