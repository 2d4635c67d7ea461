// SPDX-License-Identifier: MIT
#pragma once
// What a run reads, so that a comparison notices when it has changed.
#include <map>
#include <string>
#include <vector>

#include "lib/settings/train_flags.h"

namespace tessera::programs {

class RunInputs {
 public:
  // Of a run with these flags: its settings, and a hash of every file and folder that one of them
  // names, but for those that it writes. The settings come from the table, so that none is
  // forgotten.
  std::string of(const std::vector<std::string>& flags, Program program);

 private:
  const std::string& digest(const std::string& path);

  std::map<std::string, std::string> digests_;  // by path: rows share most
};

// Of one file, or of the files in a folder and in those directly inside it but hidden ones. Large
// files are sampled, because a model of 100 GB takes minutes to read: of safetensors the header and
// the beginning of every tensor, of others 64 pieces.
std::string input_digest(const std::string& path);

}  // namespace tessera::programs
