// SPDX-License-Identifier: MIT
// echo "The river rises" | tessera-generate --model DIR --max_new_tokens 16
// mpirun -n 2 tessera-generate --model DIR --strategy zero3 --prompts prompts.jsonl --output
// out.jsonl
#include "lib/tools/generate/generate.h"

int main(int argc, char** argv) { return tessera::programs::run_generate(argc, argv); }
