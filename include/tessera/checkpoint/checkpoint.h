// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Reading checkpoints: search, load into any layout, verify.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/state.h"
#include "tessera/comm/communicator.h"

namespace tessera {

/// Statistics of load() on this rank.
struct LoadReport {
  int64_t bytes_read = 0;              ///< bytes read by this rank
  double load_s = 0;                   ///< seconds that load() took on this rank
  std::vector<std::string> converted;  ///< "name (kind): Float to BFloat16", of this rank
  std::vector<std::string> unused;     ///< tensors of the checkpoint that no rank requested
};

/// A checkpoint that is complete by manifest and file sizes; bytes are checked when read. Errors
/// are Error(kDataLoss) with file and byte or tensor.
class Checkpoint {
 public:
  /// Opens a checkpoint. Throws for a manifest that Manifest::parse() rejects, and for missing,
  /// extra or truncated files.
  explicit Checkpoint(std::string path);

  const std::string& path() const { return path_; }  ///< the checkpoint's directory
  /// Its tensors, files and hashes.
  const Manifest& manifest() const { return manifest_; }
  /// The JSON object that was given to CheckpointWriter::save().
  const std::string& run() const { return manifest_.run; }

  /// Reads this rank's pieces of the state, under any layout. Checks every block that it reads as a
  /// whole before use. Converts dtypes; padding keeps its value. Throws also for a missing tensor
  /// or another shape; values are undefined after an error.
  LoadReport load(const std::vector<StateTensor>& state) const;
  at::Tensor read(const TensorKey& key) const;  ///< a whole tensor, on the CPU

  /// Reads every byte; returns one sentence per damaged file or tensor.
  std::vector<std::string> verify() const;

 private:
  std::string path_;
  Manifest manifest_;
};

/// Opens a checkpoint on every rank; collective. An error on one rank is thrown on all.
Checkpoint open_checkpoint(Communicator& world, const std::string& path);
/// Loads on every rank; collective. An error on one rank is thrown on all.
LoadReport load_checkpoint(Communicator& world, const Checkpoint& checkpoint,
                           const std::vector<StateTensor>& state);

/// Result of find_checkpoint().
struct FoundCheckpoint {
  std::string path;                  ///< "" when there is none
  std::vector<std::string> skipped;  ///< newer ones that are not usable, one sentence each
};
/// The newest checkpoint-<step> in a run's directory with a valid manifest and all files. before:
/// only steps below it, to fall back when loading has failed.
FoundCheckpoint find_checkpoint(const std::string& directory,
                                std::optional<int64_t> before = std::nullopt);
/// find_checkpoint() on rank 0, whose result all ranks get. Collective.
FoundCheckpoint find_checkpoint(Communicator& world, const std::string& directory,
                                std::optional<int64_t> before = std::nullopt);

}  // namespace tessera
