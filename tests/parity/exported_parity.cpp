// SPDX-License-Identifier: MIT
// Exported programs of directories that are given: beside PyTorch, packed rows beside padded ones
// where the program takes them, and every layout beside one rank.
//   exported_parity DIRECTORY...
// One line a directory: "equal" with the largest relative difference to PyTorch and of each layout,
// or what differs first. What became tessera's operators goes to standard error. The exit code is 1
// when any differs.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
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

// A directory, and the numbers of PyTorch in it.
struct Exported {
  explicit Exported(const std::string& where)
      : directory(where),
        manifest(Json::parse_file(where + "/program.json")),
        reference(Json::parse_file(where + "/reference.json")),
        expected(reference.at("optimizers").at("sgd")),
        batches(reference.at("batches")),
        is_module(manifest.at("task").as_string() == "module") {
    for (const Json& buffer : manifest.at("buffers").items()) {
      changes_buffers = changes_buffers || buffer.at("changes").as_bool();
    }
  }
  ProgramOptions options(bool cut) const {
    ProgramOptions made{.cut = cut};
    if (changes_buffers) made.running_statistics_of_rank = 0;
    return made;
  }
  bool draws() const { return reference.contains("seeds"); }
  uint64_t seed_of(size_t step) const {
    return draws() ? static_cast<uint64_t>(reference.at("seeds").at(step).as_int64()) : 0;
  }
  MicroBatch batch(size_t step) const {
    return is_module ? test::module_batch(manifest, batches.at(step))
                     : test::causal_batch(batches.at(step));
  }

  std::string directory;
  Json manifest, reference, expected, batches;
  bool is_module, changes_buffers = false;
};

// The larger one, and a difference that is no number.
void raise(double& largest, double other) {
  if (!(other <= largest)) largest = other;
}

// "", or the name of the first tensor whose norm or probe differs.
std::string difference_of_probes(const std::map<std::string, at::Tensor>& tensors,
                                 const Json& expected,
                                 const std::map<std::string, std::string>& names, double& largest) {
  for (const auto& [name, numbers] : expected.members()) {
    const auto own = tensors.find(names.at(name));
    if (own == tensors.end()) continue;
    const double norm = numbers.at("norm").as_double(), bound = std::max(norm, kLeastNorm);
    const auto& [mine, probe] = test::norm_and_probe(own->second);
    const double other = numbers.at("probe").as_double();
    // A sum of products with a vector of the norm sqrt(numel / 2).
    const double room = bound * std::sqrt(static_cast<double>(own->second.numel()) / 2 + 1);
    raise(largest, std::max(std::abs(mine - norm) / bound, std::abs(probe - other) / room));
    if (std::abs(mine - norm) > kTolerance * bound) {
      return concat(name, " has the norm ", mine, ", PyTorch's ", norm);
    }
    if (std::abs(probe - other) > kTolerance * room) {
      return concat(name, " has the probe ", probe, ", PyTorch's ", other);
    }
  }
  return "";
}

// "", or the first buffer that differs after the steps.
std::string difference_of_buffers(const WholeModel& model, const Json& expected) {
  size_t found = 0;
  for (const auto& block : model.blocks()) {
    for (const Buffer& buffer : block->buffers()) {
      const auto wanted = expected.find(buffer.name);
      if (!wanted) continue;
      ++found;
      const at::Tensor values =
          test::tensor_of(*wanted, at::kDouble).reshape(buffer.tensor.sizes());
      if (!at::allclose(buffer.tensor.to(at::kDouble), values, kTolerance, 1e-7)) {
        return concat("buffer ", buffer.name, " differs");
      }
    }
  }
  if (found == expected.size()) return "";
  return concat(expected.size(), " buffers change, ", found, " were found");
}

// "", or what differs first from PyTorch over the steps of SGD.
std::string difference_to_reference(const Exported& exported, bool cut, double& largest) {
  const Json& expected = exported.expected;
  const auto names = test::names_in_weights(exported.directory);
  test::LoadedModel loaded(exported.directory, exported.options(cut));
  const double rate = expected.at("settings").at("lr").as_double();
  for (size_t i = 0; i < exported.batches.size(); ++i) {
    const auto result = test::step(loaded, exported.batch(i), {.seed = exported.seed_of(i)});
    const double loss = expected.at("loss").at(i).as_double();
    raise(largest, std::abs(result.loss - loss) / std::abs(loss));
    if (std::abs(result.loss - loss) > kTolerance * std::abs(loss)) {
      return concat("loss of step ", i, " is ", result.loss, ", PyTorch's ", loss);
    }
    if (i == 0) {
      const std::string gradient =
          difference_of_probes(result.gradients, expected.at("gradients"), names, largest);
      if (!gradient.empty()) return concat("gradient of ", gradient);
    }
    const at::NoGradGuard no_grad;
    for (const Parameter& parameter : loaded.model.parameters()) {
      parameter.tensor.sub_(parameter.tensor.grad() * rate);
    }
  }
  std::map<std::string, at::Tensor> weights;
  for (const Parameter& p : loaded.model.parameters()) weights[p.name] = p.tensor.detach();
  const std::string weight = difference_of_probes(weights, expected.at("final"), names, largest);
  if (!weight.empty()) return concat("after the steps ", weight);
  return difference_of_buffers(loaded.model, expected.at("buffers"));
}

struct Layout {
  const char* name;
  ParityRow row, beside;
};

// beside: the layout with the same micro-batches, whose numbers are those that BatchNorm and
// dropout depend on.
std::vector<Layout> layouts(size_t blocks, bool by_micro_batch) {
  ParityRow alone{.accumulation = 4}, two{.ranks = 2, .accumulation = 2};
  alone.parallel.strategy = "single";
  two.parallel.strategy = "ddp";
  std::vector<Layout> all;
  const auto add = [&](const char* name, const std::string& strategy, ParityRow row) -> ParityRow& {
    row.parallel.strategy = strategy;
    all.push_back({name, row, by_micro_batch && row.data() > 1 ? two : alone});
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

ParityWork work_of(const Exported& exported, const TensorSource& weights) {
  const ModelSpec model = from_program(exported.directory, exported.options(/*cut=*/true));
  ParityWork work;
  if (exported.is_module) {
    work = token_work(model, {.rows = 4, .steps = 2});
    for (size_t i = 0; i < 2; ++i) work.global_batches[i] = exported.batch(i);
  } else {
    const Json config = Json::parse_file(exported.directory + "/config.json");
    work = token_work(
        model,
        {.vocabulary = config.at("vocab_size").as_int64(), .rows = 8, .sequence = 9, .steps = 2});
  }
  work.source = &weights;
  work.optimizer = make_sgd({});  // makes no steps of rounding noise, as Adam does
  return work;
}

double largest_difference(const Named& actual, const Named& expected, double least_norm) {
  double largest = 0;
  for (const auto& [name, value] : expected) {
    const at::Tensor wide = value.to(at::kDouble);
    const double norm = std::max(wide.norm().item<double>(), least_norm);
    raise(largest, (actual.at(name) - wide).norm().item<double>() / norm);
  }
  return largest;
}

// Of losses, last gradients and final weights, where difference() finds none.
double largest_difference(const RankRecord& actual, const RankRecord& expected) {
  double largest = 0;
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    const double loss = expected.steps[i].loss;
    raise(largest, std::abs(actual.steps[i].loss - loss) / std::abs(loss));
  }
  const StepRecord& last = expected.steps.back();
  raise(largest,
        largest_difference(actual.steps.back().gradients, last.gradients, 0.05 * last.norm));
  raise(largest, largest_difference(actual.final, expected.final, 1e-12));
  return largest;
}

// "", or the first layout that differs from the one it is compared with. said: ", NAME NUMBER" of
// each that agrees.
std::string difference_of_layouts(const Exported& exported, std::string& said) {
  const HuggingFaceDirectory weights(exported.directory);
  const ParityWork work = work_of(exported, weights);
  const bool by_micro_batch = exported.changes_buffers || exported.draws();
  std::map<std::string, RankRecord> expected;
  for (const Layout& layout : layouts(work.model.block_count(), by_micro_batch)) {
    const auto [known, is_new] = expected.try_emplace(layout.beside.name());
    if (is_new) known->second = run_on_threads(layout.beside, work).front();
    double largest = 0;
    for (const RankRecord& rank : run_on_threads(layout.row, work)) {
      const std::string what = difference(rank, known->second, kTolerance);
      if (!what.empty()) return concat(layout.name, ": ", what);
      raise(largest, largest_difference(rank, known->second));
    }
    said += concat(", ", layout.name, " ", largest);
  }
  return "";
}

// Rows of unequal lengths end to end, and the same rows with padding behind them.
std::pair<MicroBatch, MicroBatch> packed_and_padded(int64_t vocabulary) {
  const std::vector<int64_t> lengths = {9, 2, 14, 5};
  const int64_t longest = std::ranges::max(lengths);
  at::Generator generator = at::detail::createCPUGenerator(7);
  std::vector<at::Tensor> ids, labels, padded_ids, padded_labels;
  for (const int64_t length : lengths) {
    for (auto* to : {&ids, &labels}) {
      to->push_back(at::randint(1, vocabulary, {1, length}, generator, at::dtype(at::kLong)));
    }
    const auto behind = [&](const at::Tensor& row, int64_t value) {
      return at::constant_pad_nd(row, {0, longest - length}, value);
    };
    padded_ids.push_back(behind(ids.back(), 0));
    padded_labels.push_back(behind(labels.back(), kIgnoredLabel));
  }
  MicroBatch packed = make_micro_batch(at::cat(ids, 1), at::cat(labels, 1));
  packed.packed = make_packed_rows(lengths, packed.input_ids.size(1));
  MicroBatch padded = make_micro_batch(at::cat(padded_ids), at::cat(padded_labels));
  padded.target_count = packed.target_count;
  return {packed, padded};
}

// "", or what differs between packed and padded rows where the program takes both.
std::string difference_of_packed(const Exported& exported, std::string& said) {
  test::LoadedModel loaded(exported.directory, exported.options(/*cut=*/true));
  for (const auto& block : loaded.model.blocks()) {
    if (!block->supports_packed_rows()) return "";
  }
  const Json config = Json::parse_file(exported.directory + "/config.json");
  const auto [packed, padded] = packed_and_padded(config.at("vocab_size").as_int64());
  const auto actual = test::step(loaded, packed), expected = test::step(loaded, padded);
  double whole = 0, largest = std::abs(actual.loss / expected.loss - 1);
  for (const auto& [name, value] : expected.gradients) {
    whole = std::hypot(whole, value.norm().item<double>());
  }
  raise(largest, largest_difference(actual.gradients, expected.gradients, 0.05 * whole));
  if (!(largest <= kTolerance)) return concat("packed rows differ from padded ones by ", largest);
  said += concat(", packed beside padded ", largest);
  return "";
}

std::string difference(const Exported& exported, std::string& said) {
  double largest = 0;
  const std::string whole = difference_to_reference(exported, /*cut=*/false, largest);
  if (!whole.empty()) return whole;
  said += concat(", PyTorch ", largest);
  // Each block draws from a seed of its own.
  const std::string cut =
      exported.draws() ? "" : difference_to_reference(exported, /*cut=*/true, largest);
  if (!cut.empty()) return concat("cut: ", cut);
  if (!exported.draws()) said += concat(", PyTorch beside blocks ", largest);
  const std::string packed = exported.is_module ? "" : difference_of_packed(exported, said);
  return packed.empty() ? difference_of_layouts(exported, said) : packed;
}

bool check_directory(const std::string& directory) {
  std::string blocks = "?", result, said;
  try {
    const Exported exported(directory);
    ProgramOptions options = exported.options(/*cut=*/true);
    options.report = true;
    blocks = concat(from_program(directory, options).block_count());
    result = difference(exported, said);
  } catch (const std::exception&) {
    result = current_failure().message;
  }
  const std::string all = result.empty() ? concat("equal", said) : result;
  std::printf("%s: %s blocks, %s\n", directory.c_str(), blocks.c_str(), all.c_str());
  std::fflush(stdout);
  return result.empty();
}

}  // namespace

int main(int argc, char** argv) {
  bool equal = true;
  for (int i = 1; i < argc; ++i) equal = check_directory(argv[i]) && equal;
  return equal ? 0 : 1;
}
