// SPDX-License-Identifier: MIT
#pragma once
// A directory written under a temporary name and renamed when complete.
#include <string>

namespace tessera {

// The temporary directory is <directory>.tessera.tmp with a mark file. A killed process's remains
// are removed; a directory without the mark is foreign and stays. Errors are Error(kDataLoss) with
// the path and the system's reason.
class UnfinishedDirectory {
 public:
  // Throws Error(kInvalidArgument) if a foreign file has this name, Error(kDataLoss) while another
  // process writes there.
  explicit UnfinishedDirectory(std::string directory);
  ~UnfinishedDirectory();  // removes it unless committed
  UnfinishedDirectory(const UnfinishedDirectory&) = delete;
  UnfinishedDirectory& operator=(const UnfinishedDirectory&) = delete;

  const std::string& path() const { return path_; }
  // Renames it durably. replaces: an existing directory is replaced, atomically if the file system
  // can exchange names, and removed afterwards.
  void commit(bool replaces);

 private:
  void make();
  void replace();

  std::string directory_, path_;
  int mark_ = -1;
};

}  // namespace tessera
