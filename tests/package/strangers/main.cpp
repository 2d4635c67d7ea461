// SPDX-License-Identifier: MIT
// strangers PROGRAM: trains it in plain LibTorch and with every strategy; fails if they differ.
// Without a name: lists the programs.
#include <tessera/comm/local.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>

#include "stranger.h"

namespace strangers {
namespace {

std::vector<Layout> layouts_of(const Program& program) {
  std::vector<Layout> all{{"single", {}, {}}};
  for (const char* strategy : {"ddp", "zero2", "zero3", "fsdp"}) {
    for (const int ranks : {2, 3}) {
      ParallelConfig config{.strategy = strategy};
      if (config.strategy == "zero3") config.persistence_threshold = 8;
      all.push_back({config.strategy + " on " + std::to_string(ranks), config, {.data = ranks}});
    }
  }
  if (program.blocks) all.push_back({"2 stages", {.strategy = "ddp"}, {.pipeline = 2}});
  return all;
}

std::string difference(const Trained& actual, const Trained& expected, double tolerance) {
  if (actual.losses.size() != expected.losses.size() || expected.losses.empty()) {
    return "other steps";
  }
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    const double loss = actual.losses[i], right = expected.losses[i];
    if (!(std::abs(loss - right) <= tolerance * std::abs(right))) {
      return "loss " + std::to_string(i) + " is " + std::to_string(loss) + " instead of " +
             std::to_string(right);
    }
  }
  if (actual.weights.size() != expected.weights.size()) {
    return std::to_string(actual.weights.size()) + " weights instead of " +
           std::to_string(expected.weights.size());
  }
  for (const auto& [name, value] : expected.weights) {
    if (!actual.weights.contains(name)) return name + " is missing";
    const double largest = (actual.weights.at(name) - value).abs().max().item<double>();
    const double scale = value.abs().max().item<double>();
    if (!(largest <= tolerance * scale)) {
      return name + " differs by " + std::to_string(largest / scale) + " of its largest value";
    }
  }
  return "";
}

int run(const Program& program) {
  const Trained expected = program.plain();
  int differences = 0;
  for (const Layout& layout : layouts_of(program)) {
    Trained actual;
    run_local_ranks(layout.mesh.pipeline * layout.mesh.data, [&](Communicator& world) {
      Trained trained = program.port(world, layout);
      if (world.rank() == 0) actual = std::move(trained);
    });
    const std::string what = difference(actual, expected, program.tolerance);
    differences += !what.empty();
    std::printf("%s, %s: %s\n", program.name.c_str(), layout.name.c_str(),
                what.empty() ? "equal" : what.c_str());
  }
  return differences;
}

}  // namespace

std::vector<Program>& programs() {
  static std::vector<Program> all;
  return all;
}
Registered::Registered(Program program) { programs().push_back(std::move(program)); }

MicroBatch rows_of(const MicroBatch& all, int64_t part, int64_t parts) {
  const int64_t rows = all.input_ids.size(0) / parts;
  std::map<std::string, at::Tensor> extra;
  for (const auto& [name, tensor] : all.extra) extra[name] = tensor.narrow(0, part * rows, rows);
  return make_micro_batch(all.input_ids.narrow(0, part * rows, rows),
                          all.labels.narrow(0, part * rows, rows), std::move(extra));
}

Draw::Draw(uint64_t seed) : generator_(at::make_generator<at::CPUGeneratorImpl>(seed)) {}
at::Tensor Draw::normal(at::IntArrayRef shape) { return at::randn(shape, generator_); }
at::Tensor Draw::integers(int64_t below, at::IntArrayRef shape) {
  return at::randint(below, shape, generator_, at::kLong);
}

std::map<std::string, at::Tensor> weights_of(const nn::Module& module) {
  std::map<std::string, at::Tensor> weights;
  for (const auto& item : module.named_parameters()) {
    weights[item.key()] = item.value().detach().clone();
  }
  return weights;
}

std::map<std::string, at::Tensor> weights_of(Strategy& strategy, bool several_blocks) {
  std::map<std::string, at::Tensor> weights;
  strategy.visit_parameters([&](const VisitedParameter& parameter) {
    const std::string name =
        several_blocks ? parameter.block + "." + parameter.name : parameter.name;
    weights[name] = parameter.value.detach().clone();
  });
  return weights;
}

}  // namespace strangers

int main(int argc, char** argv) {
  // Programs that save write to the working directory.
  const auto folder =
      std::filesystem::temp_directory_path() / ("strangers_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  std::filesystem::current_path(folder);
  int differences = 0;
  bool found = argc < 2;
  for (const strangers::Program& program : strangers::programs()) {
    if (argc < 2) std::printf("%s\n", program.name.c_str());
    for (int i = 1; i < argc; ++i) {
      if (program.name != argv[i] && std::strcmp(argv[i], "all") != 0) continue;
      found = true;
      differences += strangers::run(program);
    }
  }
  std::filesystem::remove_all(folder);
  return !found || differences > 0;
}
