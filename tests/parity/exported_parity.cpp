// SPDX-License-Identifier: MIT
// Exported programs of directories that are given: beside PyTorch, and every layout beside one
// rank.
//   exported_parity DIRECTORY...
// One line a directory. The exit code is 1 when any differs.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

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

constexpr double kTolerance = 1e-5, kLeastNorm = 1e-2;

// "", or what differs first from PyTorch over five steps of SGD.
std::string difference_to_reference(const std::string& directory, bool cut) {
  const Json reference = Json::parse_file(directory + "/reference.json");
  const Json expected = reference.at("optimizers").at("sgd"), batches = reference.at("batches");
  const auto names = test::names_in_weights(directory);
  test::LoadedModel loaded(directory, {.cut = cut});
  const double rate = expected.at("settings").at("lr").as_double();
  for (size_t i = 0; i < batches.size(); ++i) {
    const auto result = test::step(loaded, test::causal_batch(batches.at(i)), true);
    const double loss = expected.at("loss").at(i).as_double();
    if (std::abs(result.loss - loss) > kTolerance * std::abs(loss)) {
      return concat("loss of step ", i, " is ", result.loss, ", PyTorch's ", loss);
    }
    for (const auto& [name, of_parameter] : expected.at("gradients").members()) {
      const auto own = result.gradients.find(names.at(name));
      if (i > 0 || own == result.gradients.end()) continue;
      const double norm = of_parameter.at("norm").as_double();
      const double mine = own->second.to(at::kDouble).norm().item<double>();
      if (std::abs(mine - norm) > kTolerance * std::max(norm, kLeastNorm)) {
        return concat("gradient of ", name, " has the norm ", mine, ", PyTorch's ", norm);
      }
    }
    const at::NoGradGuard no_grad;
    for (const Parameter& parameter : loaded.model.parameters()) {
      parameter.tensor.sub_(parameter.tensor.grad() * rate);
    }
  }
  return "";
}

struct Layout {
  const char* name;
  ParityRow row;
};

std::vector<Layout> layouts(size_t blocks) {
  std::vector<Layout> all;
  const auto add = [&](const char* name, const std::string& strategy, ParityRow row) -> ParityRow& {
    row.parallel.strategy = strategy;
    all.push_back({name, row});
    return all.back().row;
  };
  add("zero2", "zero2", {.ranks = 2, .accumulation = 2});
  add("zero3", "zero3", {.ranks = 2, .accumulation = 2}).parallel.persistence_threshold = 20;
  add("fsdp", "fsdp", {.ranks = 2, .accumulation = 2});
  add("recomputed", "single", {.accumulation = 4}).parallel.gradient_checkpointing = true;
  add("offloaded", "zero2", {.ranks = 2, .accumulation = 2}).parallel.offload.what =
      Offload::kOptimizer;
  if (blocks > 1) add("pipeline", "single", {.ranks = 2, .accumulation = 4, .pipeline = 2});
  return all;
}

// "", or the first layout that differs from one rank.
std::string difference_of_layouts(const std::string& directory, int64_t vocabulary) {
  const HuggingFaceDirectory weights(directory);
  ParityWork work = token_work(from_program(directory),
                               {.vocabulary = vocabulary, .rows = 8, .sequence = 9, .steps = 2});
  work.source = &weights;
  work.optimizer = make_sgd({});  // makes no steps of rounding noise, as Adam does
  ParityRow alone{.accumulation = 4};
  alone.parallel.strategy = "single";
  const RankRecord expected = run_on_threads(alone, work).front();
  for (const Layout& layout : layouts(work.model.block_count())) {
    for (const RankRecord& rank : run_on_threads(layout.row, work)) {
      const std::string what = difference(rank, expected, kTolerance);
      if (!what.empty()) return concat(layout.name, ": ", what);
    }
  }
  return "";
}

bool check_directory(const std::string& directory) {
  std::string blocks = "?", result;
  try {
    blocks = concat(from_program(directory).block_count());
    result = difference_to_reference(directory, /*cut=*/false);
    if (result.empty()) result = difference_to_reference(directory, /*cut=*/true);
    if (result.empty()) {
      const Json config = Json::parse_file(directory + "/config.json");
      result = difference_of_layouts(directory, config.at("vocab_size").as_int64());
    }
  } catch (const std::exception&) {
    result = current_failure().message;
  }
  std::printf("%s: %s blocks, %s\n", directory.c_str(), blocks.c_str(),
              result.empty() ? "equal" : result.c_str());
  std::fflush(stdout);
  return result.empty();
}

}  // namespace

int main(int argc, char** argv) {
  bool equal = true;
  for (int i = 1; i < argc; ++i) equal = check_directory(argv[i]) && equal;
  return equal ? 0 : 1;
}
