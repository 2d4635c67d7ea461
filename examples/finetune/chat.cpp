// SPDX-License-Identifier: MIT
// mpirun -n 2 tessera-finetune-chat --model DIR --train_file chats.jsonl --strategy zero2
// --output_dir out
#include "lib/run/program.h"

int main(int argc, char** argv) {
  using namespace tessera::programs;
  return run_program(finetune(Program::kChat, "tessera-finetune-chat",
                              "Fine-tunes a causal language model on chats under any strategy."),
                     argc, argv);
}
