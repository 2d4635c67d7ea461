// SPDX-License-Identifier: MIT
#include "tessera/core/version.h"

#include <torch/version.h>

#include <cstdio>
#include <string_view>

#include "lib/core/version_flag.h"

namespace tessera {

BuildInfo build_info() {
  return {.version = TESSERA_VERSION,
          .commit = *TESSERA_GIT_SHA != '\0' ? TESSERA_GIT_SHA : "unknown",
          .libtorch = TORCH_VERSION,
          .cuda = TESSERA_CUDA_VERSION,
          .transports = TESSERA_TRANSPORTS};
}

bool answered_version(const char* program, int argc, char** argv) {
  if (argc != 2 || argv[1] != std::string_view("--version")) return false;
  const BuildInfo info = build_info();
  std::printf("%s %s\ncommit      %s\nLibTorch    %s\nCUDA        %s\ntransports  %s\n", program,
              info.version.c_str(), info.commit.c_str(), info.libtorch.c_str(), info.cuda.c_str(),
              info.transports.c_str());
  return true;
}

}  // namespace tessera
