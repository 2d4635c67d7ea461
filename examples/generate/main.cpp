// SPDX-License-Identifier: MIT
// echo "The river rises" | tessera-generate --model DIR --max_new_tokens 16
// mpirun -n 2 tessera-generate --model DIR --strategy zero3 --prompts prompts.jsonl --output
// out.jsonl
#include "lib/core/version_flag.h"
#include "lib/tools/generate/generate.h"

int main(int argc, char** argv) {
  if (tessera::answered_version("tessera-generate", argc, argv)) return 0;
  return tessera::programs::run_generate(argc, argv);
}
