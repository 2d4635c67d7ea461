// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Saving the state of a run so that a kill at any instant leaves a checkpoint that loads.
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

/// How checkpoints are written.
struct CheckpointOptions {
  int64_t total_limit = 0;  ///< complete checkpoints that remain; 0: all
  /// save() returns when the state is copied; the rest happens on a thread beside the next steps.
  bool asynchronous = false;
  /// What does not fit on the device a second time is copied while the next forward and backward
  /// run. Then before_update() has to be called before every update.
  bool late_copies = false;
  /// How the ranks talk to each other on the host; must outlive the writer. Null: through `world`,
  /// and where that is one of GPUs a call waits for the work that is queued there.
  ControlChannel* channel = nullptr;
  bool locked = false;  ///< rank 0 holds the directory's DirectoryLock, which outlives the writer
  FileSystem* files = &FileSystem::system();  ///< where they are written: tests give one that fails
};

/// A checkpoint that is complete.
struct SavedCheckpoint {
  std::string path;    ///< its directory
  int64_t step = 0;    ///< of the run
  int64_t bytes = 0;   ///< of all ranks' files
  double write_s = 0;  ///< from save() until it was complete
  double stall_s = 0;  ///< of it, how long this rank's calls took
  /// Of stall_s, waiting for the disk: all of a synchronous save's writing; else because the next
  /// save, or the end of the run, came before this one was complete.
  double waited_s = 0;
};

/// Writes checkpoints into one directory, which no other job may use meanwhile. Every call is
/// collective over `world`, which must outlive it, and is made between steps. What fails on one
/// rank (a full disk, a rank that cannot write) fails on all with the same Error(kDataLoss), which
/// names rank, file and reason; nothing of that checkpoint stays, and older ones are not touched.
/// When asynchronous, the error comes from the next call.
class CheckpointWriter {
 public:
  /// Makes the directory where it is missing.
  CheckpointWriter(Communicator& world, std::string directory, CheckpointOptions options = {});
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// The run continues from this step: checkpoints of later ones, damaged or of an abandoned
  /// continuation, are renamed to <name>.old, so that nobody takes them for this run's.
  void resume_from(int64_t step);

  /// Gets the memory that copies of such a state need, so that the first save costs what the others
  /// do. To be called when the device's memory is filled as it will be, after a step. Not
  /// collective.
  void reserve(const std::vector<StateTensor>& state);
  /// Saves the pieces of all ranks as <directory>/checkpoint-<step>. run: a JSON object of the
  /// caller's, the same on all ranks; given back by Checkpoint::run(). One save is under way at a
  /// time: the one before is waited for.
  void save(int64_t step, const std::vector<StateTensor>& state, const std::string& run);
  /// Returns when what the update changes has been copied. Not collective.
  void before_update();
  /// Those that have become complete since the last call of poll() or wait(). To be called after
  /// every step when asynchronous: it moves a save on that all ranks have written, and waits for
  /// none.
  std::vector<SavedCheckpoint> poll();
  /// The same, after the save under way is complete.
  std::vector<SavedCheckpoint> wait();

  /// The checkpoint of this step is not removed by the limit; nullopt: none is kept but the newest.
  void keep(std::optional<int64_t> step) { kept_ = step; }

 private:
  struct Save;  ///< one under way

  std::vector<ShardPiece> begin(int64_t step, const std::vector<StateTensor>& state);
  void advance();   ///< collective: gets the result of the task under way, and starts the next
  void complete();  ///< collective: until nothing is under way

  Communicator& world_;
  std::string path_;
  CheckpointOptions options_;
  std::optional<int64_t> kept_;
  std::vector<SavedCheckpoint> finished_;
  std::unique_ptr<ControlChannel> own_channel_;     ///< where the caller has none
  std::unique_ptr<CheckpointDirectory> directory_;  ///< rank 0 only
  std::unique_ptr<Snapshot> snapshot_;
  std::unique_ptr<Save> under_way_;
};

/// One checkpoint with a writer of its own.
SavedCheckpoint save_checkpoint(Communicator& world, const std::string& directory, int64_t step,
                                const std::vector<StateTensor>& state, const std::string& run,
                                const CheckpointOptions& options = {});

}  // namespace tessera
