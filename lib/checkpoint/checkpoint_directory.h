// SPDX-License-Identifier: MIT
#pragma once
// A run's directory of checkpoints: rank 0's operations for all ranks. Errors are Error(kDataLoss)
// with the path and the system's reason.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/checkpoint/directory_lock.h"
#include "tessera/checkpoint/file_system.h"
#include "tessera/checkpoint/manifest.h"

namespace tessera {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kUnfinished = ".tmp";

std::string checkpoint_path(const std::string& directory, int64_t step);

class CheckpointDirectory {
 public:
  // Creates the directory if missing and locks it against other jobs for the object's lifetime
  // (unless this job holds the lock). Removes what killed runs left unfinished. A
  // checkpoint-<step>.tmp with foreign files stays.
  CheckpointDirectory(FileSystem& files, std::string path, bool locked);

  // Renames the checkpoints of later steps to <name>.old.
  void set_aside_after(int64_t step);
  // Creates the temporary directory of a checkpoint of `bytes`. Throws if space is short or the
  // step's checkpoint exists.
  void begin(int64_t step, int64_t bytes);
  // Writes the manifest and renames the directory to its final name.
  void commit(const Manifest& manifest);
  void discard(int64_t step) noexcept;  // removes an unfinished one
  // Removes the oldest complete checkpoints until `limit` remain, but never `newest` and `kept`.
  void remove_old(int64_t limit, int64_t newest, std::optional<int64_t> kept);

 private:
  std::string unfinished(int64_t step) const { return checkpoint_path(path_, step) + kUnfinished; }

  FileSystem& files_;
  std::string path_;
  std::optional<DirectoryLock> lock_;
};

struct NamedCheckpoint {
  int64_t step;
  std::string path;
  bool unfinished;  // checkpoint-<step>.tmp
};
// Everything named checkpoint-<step> or checkpoint-<step>.tmp in the directory, newest first. Empty
// if there is no such directory.
std::vector<NamedCheckpoint> named_checkpoints(const std::string& directory);

}  // namespace tessera
