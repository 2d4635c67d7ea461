// SPDX-License-Identifier: MIT
#include "tessera/core/version.h"

#include <torch/version.h>

#include "lib/core/version_flag.h"
#include "tessera/core/error.h"

namespace tessera {

BuildInfo build_info() {
  return {.version = TESSERA_VERSION,
          .commit = *TESSERA_GIT_SHA != '\0' ? TESSERA_GIT_SHA : "unknown",
          .libtorch = TORCH_VERSION,
          .cuda = TESSERA_CUDA_VERSION,
          .transports = TESSERA_TRANSPORTS};
}

std::string version_text(const std::string& program) {
  const BuildInfo info = build_info();
  return concat(program, " ", info.version, "\ncommit      ", info.commit, "\nLibTorch    ",
                info.libtorch, "\nCUDA        ", info.cuda, "\ntransports  ", info.transports,
                "\n");
}

}  // namespace tessera
