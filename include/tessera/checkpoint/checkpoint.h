// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Complete checkpoints: finding them, reading them into any layout, checking them.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/state.h"
#include "tessera/comm/communicator.h"

namespace tessera {

/// What loading did on this rank.
struct LoadReport {
  int64_t bytes_read = 0;              ///< by this rank
  double load_s = 0;                   ///< seconds that load() took on this rank
  std::vector<std::string> converted;  ///< "name (kind): Float to BFloat16", of this rank
  std::vector<std::string> unused;     ///< tensors of the checkpoint that no rank has asked for
};

/// A checkpoint that is there as a whole as far as manifest and file sizes tell; bytes are checked
/// when they are read. Errors are Error(kDataLoss) with file and byte or tensor.
class Checkpoint {
 public:
  /// Refuses a manifest that Manifest::parse() refuses, and missing, extra or cut files.
  explicit Checkpoint(std::string path);

  const std::string& path() const { return path_; }  ///< the checkpoint's directory
  /// What it holds: tensors, files and their hashes.
  const Manifest& manifest() const { return manifest_; }
  /// The JSON object that was given to CheckpointWriter::save().
  const std::string& run() const { return manifest_.run; }

  /// Fills the values: every rank asks for what it holds, under whatever layout, and reads the
  /// blocks that have some of it. Every block is checked as a whole before any of it is used.
  /// Values of another dtype are converted; padding keeps its value. Throws also when the
  /// checkpoint lacks a tensor or has it in another shape; values are undefined after an error.
  LoadReport load(const std::vector<StateTensor>& state) const;
  at::Tensor read(const TensorKey& key) const;  ///< a whole tensor, on the CPU

  /// Reads every byte. One sentence for each file or tensor that is damaged.
  std::vector<std::string> verify() const;

 private:
  std::string path_;
  Manifest manifest_;
};

/// Collective: every rank opens the checkpoint. What fails on one rank is the Error of all.
Checkpoint open_checkpoint(Communicator& world, const std::string& path);
/// Collective: load() on every rank, failing on all when it fails on one.
LoadReport load_checkpoint(Communicator& world, const Checkpoint& checkpoint,
                           const std::vector<StateTensor>& state);

/// What find_checkpoint() returns.
struct FoundCheckpoint {
  std::string path;                  ///< "" when there is none
  std::vector<std::string> skipped;  ///< newer ones that do not count, one sentence each
};
/// The newest checkpoint-<step> of a run's directory whose manifest is valid and whose files are
/// there; `before`: only steps below it, for the one to fall back to when loading has failed.
FoundCheckpoint find_checkpoint(const std::string& directory,
                                std::optional<int64_t> before = std::nullopt);
/// Collective: rank 0 looks, all get its answer.
FoundCheckpoint find_checkpoint(Communicator& world, const std::string& directory,
                                std::optional<int64_t> before = std::nullopt);

}  // namespace tessera
