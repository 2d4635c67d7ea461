// SPDX-License-Identifier: MIT
#pragma once
// The directory in which a run keeps its checkpoints; what rank 0 does there for all. Errors are
// Error(kDataLoss) with the path and the system's reason.
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
  // Makes the directory where it is missing, locks it against other jobs as long as this lives
  // (unless this job has locked it), and removes what killed runs left unfinished. A
  // checkpoint-<step>.tmp with other files than a checkpoint's is not theirs and stays.
  CheckpointDirectory(FileSystem& files, std::string path, bool locked);

  // Renames the checkpoints of later steps to <name>.old.
  void set_aside_after(int64_t step);
  // Makes the unfinished directory of a checkpoint for which `bytes` are free. Refuses a step whose
  // checkpoint exists.
  void begin(int64_t step, int64_t bytes);
  // Writes the manifest and gives the directory its name.
  void commit(const Manifest& manifest);
  void discard(int64_t step) noexcept;  // an unfinished one
  // Removes the oldest complete checkpoints until `limit` remain, but never these two.
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
// What is called checkpoint-<step> or checkpoint-<step>.tmp in the directory, newest first,
// whatever it is; nothing when there is no such directory.
std::vector<NamedCheckpoint> named_checkpoints(const std::string& directory);

}  // namespace tessera
