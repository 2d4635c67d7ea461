// SPDX-License-Identifier: MIT
#pragma once
// Writer of one rank's file of a checkpoint.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/checkpoint/file_system.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/state.h"

namespace tessera {

// Values 1-D and contiguous on any device; split masters are joined when written.
struct ShardPiece {
  TensorKey key;
  TensorSlice slice;
  at::Tensor value;
  SplitMaster split = {};

  // The defined tensors of `value` and `split`.
  std::vector<at::Tensor*> tensors();
  std::vector<const at::Tensor*> tensors() const;
  at::Device device() const { return tensors().front()->device(); }
  at::ScalarType dtype() const { return split.defined() ? at::kFloat : value.scalar_type(); }
  int64_t nbytes() const { return slice.numel() * static_cast<int64_t>(c10::elementSize(dtype())); }
};

// This rank's part of a state. Large replicated pieces are divided equally among the replicas;
// small ones go to one replica, chosen by the name. Values are views. Throws Error(kInternal) with
// the tensor whose value does not fit its slice.
std::vector<ShardPiece> pieces_to_write(const std::vector<StateTensor>& state);

// The device of the pieces, if any is on one; else the CPU.
at::Device device_of(const std::vector<ShardPiece>& pieces);
// Upper bound of the file size with these pieces.
int64_t shard_bytes(const std::vector<ShardPiece>& pieces);

// Writes <directory>/rank-<rank>.safetensors durably and hashes it meanwhile. Device values pass
// through a 16 MiB buffer. Returns the file's part of the manifest.
Manifest write_shard(FileSystem& files, const std::string& directory, int rank,
                     const std::vector<ShardPiece>& pieces);

}  // namespace tessera
