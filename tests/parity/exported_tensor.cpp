// SPDX-License-Identifier: MIT
// Exported programs on a tensor axis of 2, beside one rank.
//   mpirun -n 2 exported_tensor mpi DIRECTORY...
//   exported_tensor threads DIRECTORY...
// One line a directory: "equal", what differs, or why the axis is refused. The exit code is 1 when
// one differs.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/launch.h"
#include "tessera/core/error.h"
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

// Runs a row on two ranks; returns the records of those of this process.
using RunRow = std::function<std::vector<RankRecord>(const ParityRow&, const ParityWork&)>;

// "", or the first difference.
std::string compare(const std::string& directory, const RunRow& run) {
  const HuggingFaceDirectory weights(directory);
  const ParityWork work = work_of(directory, weights);
  ParityRow alone{.accumulation = 4};
  alone.parallel.strategy = "single";
  const RankRecord expected = run_on_threads(alone, work).front();
  for (const ParityRow& row : rows(work.model.block_count())) {
    for (const RankRecord& rank : run(row, work)) {
      const std::string what = difference(rank, expected, 1e-5);
      if (!what.empty()) return concat(row.name(), ": ", what);
    }
  }
  return "";
}

// Whether all are equal or refused. says: this process prints the lines.
bool compare_all(const std::vector<std::string>& directories, const RunRow& run, bool says) {
  bool equal = true;
  for (const std::string& directory : directories) {
    std::string result;
    try {
      result = compare(directory, run);
      equal = equal && result.empty();
    } catch (const Error& error) {
      result = concat("refused: ", error.what());
    }
    if (!says) continue;
    std::printf("%s: %s\n", directory.c_str(), result.empty() ? "equal" : result.c_str());
    std::fflush(stdout);
  }
  return equal;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string transport = argc > 1 ? argv[1] : "threads";
  const std::vector<std::string> directories(argv + std::min(argc, 2), argv + argc);
  if (transport == "threads") {
    const auto run = [](const ParityRow& row, const ParityWork& work) {
      return run_on_threads(row, work);
    };
    return compare_all(directories, run, /*says=*/true) ? 0 : 1;
  }
  bool equal = false;
  const int code = run_job({.transport = transport},
                           [&](Communicator& world, const LaunchInfo&, ControlChannel&) {
                             const auto run = [&](const ParityRow& row, const ParityWork& work) {
                               return std::vector<RankRecord>{run_parity(world, row, work)};
                             };
                             equal = compare_all(directories, run, world.rank() == 0);
                           });
  return code != 0 ? code : equal ? 0 : 1;
}
