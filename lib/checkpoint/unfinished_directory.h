// SPDX-License-Identifier: MIT
#pragma once
// A directory that is written beside its place and gets its name when it is complete.
#include <string>

namespace tessera {

// <directory>.tessera.tmp, which holds a mark of its own. What a killed process left there is
// removed; a directory without the mark is somebody else's and stays. Errors are Error(kDataLoss)
// with the path and the system's reason.
class UnfinishedDirectory {
 public:
  // Throws Error(kInvalidArgument) where something else has this name, and Error(kDataLoss) while
  // another process writes there.
  explicit UnfinishedDirectory(std::string directory);
  ~UnfinishedDirectory();  // removes it, unless it was committed
  UnfinishedDirectory(const UnfinishedDirectory&) = delete;
  UnfinishedDirectory& operator=(const UnfinishedDirectory&) = delete;

  const std::string& path() const { return path_; }
  // Gives it its name, durably. replaces: a directory that has the name already is replaced, in one
  // step where the file system can exchange names, and removed afterwards.
  void commit(bool replaces);

 private:
  void make();
  void replace();

  std::string directory_, path_;
  int mark_ = -1;
};

}  // namespace tessera
