// SPDX-License-Identifier: MIT
#pragma once
// One job at a time in an output directory.
#include <string>
#include <vector>

#include "tessera/checkpoint/file_system.h"

namespace tessera {

// Holds a directory against other jobs as long as this lives, or the process: what a killed one
// left behind is in nobody's way. Nothing in the directory may be created, written or deleted
// before.
class DirectoryLock {
 public:
  // In the directory; names host and process of the holder. It stays when the lock is given up, and
  // who clears the directory leaves it alone.
  static constexpr const char* kFile = "checkpoint.lock";

  // Makes the directory where it is missing. Throws Error(kDataLoss) that names the holder when
  // another job has it, or with the system's reason when nothing can be written there. Where the
  // file system has no locks this only warns.
  explicit DirectoryLock(std::string directory, FileSystem& files = FileSystem::system());
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

  // The job is about to write. Without this the end takes the file, and the directories made for
  // it, away again.
  void keep() { kept_ = true; }
  const std::string& directory() const { return directory_; }

 private:
  void open();
  bool lock();           // false: another job removed the file meanwhile
  void remove_unused();  // what the constructor made

  FileSystem& files_;
  std::string directory_, path_;
  std::vector<std::string> made_;  // directories, outermost first
  int file_ = -1;
  bool kept_ = false;
};

}  // namespace tessera
