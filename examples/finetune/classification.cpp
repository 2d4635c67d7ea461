// SPDX-License-Identifier: MIT
// mpirun -n 2 tessera-finetune-classification --model DIR --train_file train.csv --strategy ddp
// --output_dir out
#include "lib/run/program.h"

int main(int argc, char** argv) {
  using namespace tessera::programs;
  return run_program(finetune(Program::kClassification, "tessera-finetune-classification",
                              "Fine-tunes a text classifier under any strategy."),
                     argc, argv);
}
