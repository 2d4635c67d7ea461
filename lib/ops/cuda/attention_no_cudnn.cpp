// SPDX-License-Identifier: MIT
#include "lib/ops/cuda/attention_graph.h"
#include "tessera/core/error.h"

namespace tessera::ops::cuda {

bool has_attention_graph(const AttentionShape&) { return false; }

void run_attention_forward(const AttentionShape&, const AttentionPointers&) {
  fail(ErrorCode::kInternal, "attention: this build has no cuDNN graphs.");
}

void run_attention_backward(const AttentionShape&, const AttentionPointers&) {
  fail(ErrorCode::kInternal, "attention: this build has no cuDNN graphs.");
}

}  // namespace tessera::ops::cuda
