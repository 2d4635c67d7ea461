// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Checkpoint writer: saves a run's state so that a kill at any instant leaves a loadable
/// checkpoint.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/file_system.h"
#include "tessera/checkpoint/state.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/control_channel.h"

namespace tessera {

class CheckpointDirectory;
class Snapshot;
struct ShardPiece;

/// Options of CheckpointWriter.
struct CheckpointOptions {
  int64_t total_limit = 0;  ///< number of complete checkpoints to keep; 0: all
  /// save() returns after copying the state; a thread writes it during the next steps.
  bool asynchronous = false;
  /// State that does not fit on the device twice is copied during the next forward and backward.
  /// Requires before_update() before every update.
  bool late_copies = false;
  /// Host-side channel between the ranks; must outlive the writer. Null: `world`; on GPUs calls
  /// then wait for queued work.
  ControlChannel* channel = nullptr;
  bool locked = false;  ///< rank 0 holds the directory's DirectoryLock, which outlives the writer
  FileSystem* files = &FileSystem::system();  ///< file system to write to; tests inject failures
};

/// A complete checkpoint.
struct SavedCheckpoint {
  std::string path;    ///< its directory
  int64_t step = 0;    ///< optimizer step
  int64_t bytes = 0;   ///< bytes of all ranks' files
  double write_s = 0;  ///< seconds from save() until it was complete
  double stall_s = 0;  ///< part of write_s: time in this rank's calls
  /// Part of stall_s spent waiting for the disk: a synchronous save's writing; else the wait of the
  /// next save, or of the run's end, for this one.
  double waited_s = 0;
};

/// Writer of checkpoints into one directory, which no other job may use meanwhile. Calls are
/// collective over `world`, which must outlive it, and come between steps. A failure on one rank (a
/// full disk, say) is thrown on all as the same Error(kDataLoss) with rank, file and reason. That
/// checkpoint is removed; older ones stay. When asynchronous, the next call throws.
class CheckpointWriter {
 public:
  /// Creates the directory if it is missing.
  CheckpointWriter(Communicator& world, std::string directory, CheckpointOptions options = {});
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Continues the run from this step. Renames checkpoints of later steps, which are damaged or
  /// abandoned, to <name>.old.
  void resume_from(int64_t step);

  /// Allocates the copies of such a state in advance, so that the first save is no slower than
  /// others. Call it after a step, when the device's memory is in full use. Not collective.
  void reserve(const std::vector<StateTensor>& state);
  /// Saves the pieces of all ranks as <directory>/checkpoint-<step>. run: the caller's JSON object,
  /// equal on all ranks; see Checkpoint::run(). Waits for a previous save in progress.
  void save(int64_t step, const std::vector<StateTensor>& state, const std::string& run);
  /// Waits until the state that the update changes has been copied. Not collective.
  void before_update();
  /// Checkpoints completed since the last poll() or wait(). Call it after every step when
  /// asynchronous: it advances a save that all ranks have written, without waiting.
  std::vector<SavedCheckpoint> poll();
  /// poll() after waiting for the save in progress.
  std::vector<SavedCheckpoint> wait();

  /// Exempts this step's checkpoint from the limit; nullopt: none but the newest.
  void keep(std::optional<int64_t> step) { kept_ = step; }

 private:
  struct Save;  ///< a save in progress

  std::vector<ShardPiece> begin(int64_t step, const std::vector<StateTensor>& state);
  void advance();   ///< collective: takes the finished task's result and starts the next
  void complete();  ///< collective: waits until no save is in progress

  Communicator& world_;
  std::string path_;
  CheckpointOptions options_;
  std::optional<int64_t> kept_;
  std::vector<SavedCheckpoint> finished_;
  std::unique_ptr<ControlChannel> own_channel_;     ///< null if the caller has one
  std::unique_ptr<CheckpointDirectory> directory_;  ///< rank 0 only
  std::unique_ptr<Snapshot> snapshot_;
  std::unique_ptr<Save> under_way_;
};

/// Writes one checkpoint with a temporary CheckpointWriter.
SavedCheckpoint save_checkpoint(Communicator& world, const std::string& directory, int64_t step,
                                const std::vector<StateTensor>& state, const std::string& run,
                                const CheckpointOptions& options = {});

}  // namespace tessera
