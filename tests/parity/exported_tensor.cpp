// SPDX-License-Identifier: MIT
// Exported programs on a tensor axis of 2, beside one rank.
//   exported_tensor DIRECTORY...
// One line a directory: "equal", what differs, or why the axis is refused. The exit code is 1 when
// one differs.
#include <cstdio>
#include <string>
#include <vector>

#include "lib/core/failure.h"
#include "tessera/optim/sgd.h"
#include "tests/parity/parity.h"
#include "tests/support/exported_program.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

ParityWork work_of(const std::string& directory, const TensorSource& weights) {
  const Json config = Json::parse_file(directory + "/config.json");
  ParityWork work = token_work(
      from_program(directory),
      {.vocabulary = config.at("vocab_size").as_int64(), .rows = 8, .sequence = 9, .steps = 3});
  work.source = &weights;
  work.optimizer = make_sgd({});  // makes no steps of rounding noise, as Adam does
  return work;
}

std::vector<ParityRow> rows(size_t blocks) {
  std::vector<ParityRow> all = {{.ranks = 2, .accumulation = 4, .tensor = 2},
                                {.ranks = 2, .accumulation = 4, .tensor = 2}};
  for (ParityRow& row : all) row.parallel.strategy = "single";
  all.back().parallel.gradient_checkpointing = blocks > 1;
  return all;
}

// "", or the first difference.
std::string compare(const std::string& directory) {
  const HuggingFaceDirectory weights(directory);
  const ParityWork work = work_of(directory, weights);
  ParityRow alone{.accumulation = 4};
  alone.parallel.strategy = "single";
  const RankRecord expected = run_on_threads(alone, work).front();
  for (const ParityRow& row : rows(work.model.block_count())) {
    for (const RankRecord& rank : run_on_threads(row, work)) {
      const std::string what = difference(rank, expected, 1e-5);
      if (!what.empty()) return concat(row.name(), ": ", what);
    }
  }
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  bool equal = true;
  for (int i = 1; i < argc; ++i) {
    std::string result;
    try {
      result = compare(argv[i]);
      equal = equal && result.empty();
    } catch (const std::exception&) {
      result = "refused: " + current_failure().message;
    }
    std::printf("%s: %s\n", argv[i], result.empty() ? "equal" : result.c_str());
    std::fflush(stdout);
  }
  return equal ? 0 : 1;
}
