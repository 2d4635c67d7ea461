// SPDX-License-Identifier: MIT
// mpirun -n 2 tessera-finetune-causal --model DIR --train_file text.txt --strategy zero2
// --output_dir out
#include "lib/run/program.h"

int main(int argc, char** argv) {
  using namespace tessera::programs;
  return run_program(finetune(Program::kText, "tessera-finetune-causal",
                              "Trains a causal language model on plain text under any strategy."),
                     argc, argv);
}
