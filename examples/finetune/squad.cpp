// SPDX-License-Identifier: MIT
// mpirun -n 2 tessera-finetune-squad --model DIR --train_file train.json --strategy zero2
// --output_dir out
#include "lib/run/program.h"

int main(int argc, char** argv) {
  using namespace tessera::programs;
  return run_program(
      finetune(Program::kSquad, "tessera-finetune-squad",
               "Fine-tunes a causal language model on SQuAD questions under any strategy."),
      argc, argv);
}
