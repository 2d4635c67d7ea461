// SPDX-License-Identifier: MIT
#pragma once
// Cutting of a micro-batch's rows over the ranks of a context axis.
#include <memory>
#include <string>

#include "tessera/comm/communicator.h"
#include "tessera/core/micro_batch.h"
#include "tessera/model/cut_rows.h"

namespace tessera {

struct CutMicroBatch {
  MicroBatch micro_batch;  // this rank's tokens
  std::shared_ptr<const CutRows> rows;
};

// This rank's part of the micro-batch, whose tensors are on its device; the counts stay those of
// the whole rows. Its padding has id 0, no target and, where there is a mask, is
// masked. Reads no tensor's values. Throws Error(kInvalidArgument) unless input_ids are int64
// [batch, sequence] with labels of that shape, or one a row.
CutMicroBatch cut_rows(const MicroBatch& whole, Communicator& axis, ContextAttention attention);

// Tokens of the micro-batch on this rank; axis null: all of them.
int64_t cut_token_count(const MicroBatch& whole, const Communicator* axis);

// Throws Error(kInvalidArgument) with a context axis: `call` needs whole rows.
void require_whole_rows(const Communicator* axis, const std::string& strategy, const char* call);

}  // namespace tessera
