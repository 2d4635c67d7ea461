// SPDX-License-Identifier: MIT
// echo '"The river rises in the hills."' | tessera-tokenize --tokenizer examples/data/tokenizer
// tessera-tokenize --tokenizer DIR --input train.json --max_seq_length 512 --output rows.jsonl
#include <iostream>

#include "lib/tools/tokenize/tokenize.h"

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  std::cin.tie(nullptr);
  return tessera::programs::run_tokenize({argv + 1, argv + argc}, std::cin, std::cout, std::cerr);
}
