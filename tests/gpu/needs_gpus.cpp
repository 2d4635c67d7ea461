// SPDX-License-Identifier: MIT
// needs_gpus N PROGRAM ARGUMENTS...: runs the program on a host with N GPUs. Otherwise prints the
// missing ones and exits with ctest's status for skipped tests, or with 1 if TESSERA_GPUS promises
// N. Where ranks may share GPUs (TESSERA_SHARE_GPUS=1), one is enough.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "lib/core/switch.h"
#include "tests/gpu/gpu_count.h"

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: needs_gpus N PROGRAM ARGUMENTS...\n");
    return 2;
  }
  const int count = tessera::is_on_in_environment("TESSERA_SHARE_GPUS") ? 1 : std::atoi(argv[1]);
  if (const std::string missing = tessera::test::missing_gpus(count); !missing.empty()) {
    const bool promised = tessera::test::gpus_are_promised(count);
    std::printf("%s: %s\n", promised ? "TESSERA_GPUS is not kept" : "skipped", missing.c_str());
    return promised ? 1 : 77;
  }
  execvp(argv[2], argv + 2);
  std::perror(argv[2]);
  return 127;
}
