// SPDX-License-Identifier: MIT
#pragma once
// Exclusive lock of an output directory for one job.
#include <string>
#include <vector>

#include "tessera/checkpoint/file_system.h"

namespace tessera {

// Locks a directory for the lifetime of the object or process; a killed process leaves no lock
// behind. Take the lock before creating, writing or deleting anything in the directory.
class DirectoryLock {
 public:
  // File in the directory with host and process of the holder. It stays after unlocking, and code
  // that clears the directory must keep it.
  static constexpr const char* kFile = "checkpoint.lock";

  // Creates the directory if missing. Throws Error(kDataLoss) with the holder's name when another
  // job has the lock, or with the system's reason when the directory is not writable. Only warns
  // where the file system has no locks.
  explicit DirectoryLock(std::string directory, FileSystem& files = FileSystem::system());
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

  // Call before writing. Otherwise the destructor removes the file and the directories created for
  // it.
  void keep() { kept_ = true; }
  const std::string& directory() const { return directory_; }

 private:
  void open();
  bool lock();           // false: another job removed the file meanwhile
  void remove_unused();  // removes what the constructor created

  FileSystem& files_;
  std::string directory_, path_;
  std::vector<std::string> made_;  // directories, outermost first
  int file_ = -1;
  bool kept_ = false;
};

}  // namespace tessera
