#pragma once
// Ranks that must hold the same model, or work on the same data, find out when they do not. All
// checks are collective, and all ranks throw when one must.
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/model/model_spec.h"

namespace tessera {

// The blocks' names. Throws Error(kInvalidArgument) with the first that differs from rank 0's.
void require_same_blocks(const ModelSpec& model, Communicator& data);

// Names, shapes and treatment of a block's parameters and buffers are the same on all ranks of the
// data axis, and so are their values, or become rank 0's (BlockBuilder::from_first_rank). Throws
// Error(kInvalidArgument) with the first parameter or buffer that differs.
void agree_on_block(const BlockBuilder& builder, const std::vector<Parameter>& parameters,
                    const std::vector<Buffer>& buffers, Communicator& data);

// The values of the first rank of the data axis; a tied placeholder is left alone.
void take_from_first_rank(const at::Tensor& tensor, Communicator& data);

// Of what the tensors hold and the counts say: int64 scalar on the tensors' device, without waiting
// for it.
at::Tensor fingerprint(std::span<const MicroBatch> micro_batches, at::Device device);

}  // namespace tessera
