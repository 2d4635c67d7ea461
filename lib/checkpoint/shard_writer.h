// SPDX-License-Identifier: MIT
#pragma once
// One rank's file of a checkpoint.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/checkpoint/file_system.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/state.h"

namespace tessera {

// 1-D, contiguous, on any device; split ones are joined as they are written.
struct ShardPiece {
  TensorKey key;
  TensorSlice slice;
  at::Tensor value;
  SplitMaster split = {};

  // Those of `value` and of `split` that there are.
  std::vector<at::Tensor*> tensors();
  std::vector<const at::Tensor*> tensors() const;
  at::Device device() const { return tensors().front()->device(); }
  at::ScalarType dtype() const { return split.defined() ? at::kFloat : value.scalar_type(); }
  int64_t nbytes() const { return slice.numel() * static_cast<int64_t>(c10::elementSize(dtype())); }
};

// What this rank writes of a state: of pieces that several ranks hold, each writes an equal part of
// the large ones, and one of them, drawn by the name, the small ones. The values are views. Throws
// Error(kInternal) naming a tensor whose value does not belong to its slice.
std::vector<ShardPiece> pieces_to_write(const std::vector<StateTensor>& state);

// The device of the pieces that are on one; the CPU where all are on the host.
at::Device device_of(const std::vector<ShardPiece>& pieces);
// The file with these pieces has no more.
int64_t shard_bytes(const std::vector<ShardPiece>& pieces);

// Writes the file <directory>/rank-<rank>.safetensors and makes it durable; hashes while writing.
// Values on a device pass through a buffer of 16 MiB. Returns the part of the manifest about it.
Manifest write_shard(FileSystem& files, const std::string& directory, int rank,
                     const std::vector<ShardPiece>& pieces);

}  // namespace tessera
