// SPDX-License-Identifier: MIT
#pragma once
// Digests of a run's inputs, by which a comparison notices changes.
#include <map>
#include <string>
#include <vector>

#include "lib/settings/train_flags.h"

namespace tessera::programs {

class RunInputs {
 public:
  // Digest for a run with these flags: its settings, and a hash of every file and folder that one
  // of them names, except outputs. Settings come from the table, so none is missed.
  std::string of(const std::vector<std::string>& flags, Program program);

 private:
  const std::string& digest(const std::string& path);

  std::map<std::string, std::string> digests_;  // by path, since rows share most
};

// Digest of a file, or of a folder's files and those one level below, except hidden ones. Large
// files are sampled, since reading a 100 GB model takes minutes: a safetensors file's header and
// the start of each tensor, 64 pieces of other files.
std::string input_digest(const std::string& path);

}  // namespace tessera::programs
