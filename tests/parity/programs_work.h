// SPDX-License-Identifier: MIT
#pragma once
// Work and layouts of exported programs' parity tests.
#include <string>

#include "tessera/program/from_program.h"
#include "tests/parity/rows.h"

namespace tessera::testing {

inline std::string directory_of(const std::string& name) {
  return std::string(TESSERA_PROGRAMS) + "/" + name;
}

// Rows of random tokens; the weights are those of the directory.
inline ParityWork decoder_work(const std::string& name, int64_t vocabulary,
                               const TensorSource& weights) {
  ParityWork work = token_work(from_program(directory_of(name)),
                               {.vocabulary = vocabulary, .rows = 8, .sequence = 6, .steps = 3});
  work.source = &weights;
  return work;
}

inline ParityRow row_of(const std::string& strategy, ParityRow row, bool recomputed = false) {
  row.parallel.strategy = strategy;
  row.parallel.persistence_threshold = 20;
  row.parallel.gradient_checkpointing = recomputed;
  return row;
}

}  // namespace tessera::testing
