// SPDX-License-Identifier: MIT
// Prompts per second under any strategy, with prefill and decode measured separately:
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <random>
#include <sstream>

#include "benchmarks/rank_benchmarks.h"
#include "benchmarks/start.h"
#include "lib/core/clock.h"
#include "lib/core/file.h"
#include "lib/run/layout.h"
#include "lib/run/program.h"
#include "lib/settings/flags.h"
#include "lib/settings/train_flags.h"
#include "tessera/comm/launch.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/generation/generate.h"
#include "tessera/models/language_model.h"
#include "tessera/optim/sgd.h"

namespace tessera::bench {
namespace {

using Prompts = std::vector<std::vector<int64_t>>;

struct Options {
  std::string rows;
  int64_t prompts = 512, longest = 512, batch_size = 64, max_new_tokens = 16, iterations = 3;
  bool use_cache = true;
  programs::TrainOptions layout;
};

void add_flags(programs::FlagSet& flags, Options& o) {
  flags.add("model_config", &o.layout.model.config, "preset with random weights");
  flags.add("rows", &o.rows, "JSON lines with input_ids; random prompts unless given");
  flags.add("prompts", &o.prompts, "how many");
  flags.add("longest", &o.longest, "longest random prompt");
  flags.add("batch_size", &o.batch_size, "rows that a rank works on together");
  flags.add("max_new_tokens", &o.max_new_tokens, "tokens of every answer; at least 2");
  flags.add("iterations", &o.iterations,
            "measured passes over the prompts, behind one that is not");
  flags.add("use_cache", &o.use_cache, "keep keys and values");
  flags.add("backend", &o.layout.run.backend, "transport between ranks");
  programs::add_strategy_flags(flags, o.layout);
}

Prompts random_prompts(const Options& options, int64_t vocabulary) {
  constexpr double kLogMean = 5.13, kLogDeviation = 0.4;  // a mean of 183 tokens
  std::mt19937_64 random(1);
  std::lognormal_distribution<double> length(kLogMean, kLogDeviation);
  std::uniform_int_distribution<int64_t> id(1, vocabulary - 1);
  Prompts prompts(static_cast<size_t>(options.prompts));
  for (auto& prompt : prompts) {
    const auto tokens = static_cast<int64_t>(std::lround(length(random)));
    prompt.resize(static_cast<size_t>(std::clamp<int64_t>(tokens, 1, options.longest)));
    for (int64_t& token : prompt) token = id(random);
  }
  return prompts;
}

Prompts read_prompts(const Options& options, int64_t vocabulary) {
  std::istringstream in(read_file(options.rows));
  Prompts prompts;
  std::string line;
  while (static_cast<int64_t>(prompts.size()) < options.prompts && std::getline(in, line)) {
    prompts.emplace_back();
    for (const Json& id : Json::parse(line, {}, options.rows).at("input_ids").items()) {
      prompts.back().push_back(id.as_int64(0, vocabulary - 1));
    }
  }
  return prompts;
}

class Work {
 public:
  Work(Communicator& world, const Options& options)
      : world_(world),
        options_(options),
        mesh_(world, programs::mesh_extents(options.layout, world.size())),
        strategy_(make_strategy(programs::parallel_config(options.layout), mesh_)),
        model_(LanguageModel::preset(options.layout.model.config)) {
    const int64_t vocabulary = model_.config().vocabulary;
    prompts_ = options.rows.empty() ? random_prompts(options, vocabulary)
                                    : read_prompts(options, vocabulary);
    const ModelSpec model =
        freeze(model_.make_causal(), [](const std::string&, const std::string&) { return true; });
    strategy_->attach(model, {.device = world.device(), .seed = 1}, make_sgd({}));
  }

  // Seconds of a pass over all prompts.
  double pass(int64_t new_tokens) {
    world_.barrier();
    synchronize_device(world_.device());
    const double begin = now_s();
    generate(*strategy_, mesh_, prompts_,
             {.max_new_tokens = new_tokens,
              .without_end_token = true,
              .max_positions = model_.config().max_positions,
              .batch_size = options_.batch_size,
              .use_cache = options_.use_cache});
    return now_s() - begin;
  }
  // Mean over the iterations, after a warm-up that selects kernels and algorithms.
  void measure(benchmark::State& state, int64_t new_tokens, double& mean) {
    const double first = pass(new_tokens);
    mean = 0;
    for (auto _ : state) {
      const double seconds = pass(new_tokens);
      state.SetIterationTime(seconds);
      mean += seconds / static_cast<double>(options_.iterations);
    }
    state.counters["prompts/s"] = static_cast<double>(prompts_.size()) / mean;
    state.counters["first_s"] = first;
  }
  std::string strategy_name() const {
    const programs::TrainOptions& layout = options_.layout;
    if (layout.axes.tensor == 1) return strategy_->name();
    return concat(strategy_->name(), " tensor=", layout.axes.tensor,
                  layout.parallel.sequence_parallel ? " sequence-parallel" : "");
  }
  void print(double prefill_s, double all_s) const {
    const auto count = static_cast<double>(prompts_.size());
    size_t tokens = 0;
    for (const auto& prompt : prompts_) tokens += prompt.size();
    const double decoded = count * static_cast<double>(options_.max_new_tokens - 1);
    std::cout << "TESSERA "
              << JsonWriter()
                     .begin_object()
                     .field("model", model_.config().name)
                     .field("strategy", strategy_name())
                     .field("world", world_.size())
                     .field("device", device_name(world_.device()))
                     .field("dtype", name_of(options_.layout.parallel.precision.parameter))
                     .field("batch", options_.batch_size)
                     .field("prompts", prompts_.size())
                     .field("prompt_tokens", tokens)
                     .field("new_tokens", options_.max_new_tokens)
                     .field("prompts_per_s", count / all_s)
                     .field("prefill_s", prefill_s)
                     .field("prefill_tokens_per_s", static_cast<double>(tokens) / prefill_s)
                     .field("decode_s", all_s - prefill_s)
                     .field("decode_tokens_per_s", decoded / (all_s - prefill_s))
                     .end_object()
                     .text()
              << std::endl;
  }

 private:
  Communicator& world_;
  const Options& options_;
  DeviceMesh mesh_;
  std::unique_ptr<Strategy> strategy_;
  LanguageModel model_;
  Prompts prompts_;
};

void run_rank(Communicator& world, const Options& options) {
  Work work(world, options);
  double prefill_s = 0, all_s = 0;
  RankBenchmarks benchmarks;
  const auto add = [&](const char* name, int64_t new_tokens, double& mean) {
    benchmarks.add(name, options.iterations, [&, new_tokens](benchmark::State& state) {
      work.measure(state, new_tokens, mean);
    });
  };
  add("generate", options.max_new_tokens, all_s);
  add("prefill", 1, prefill_s);
  benchmarks.run(world);
  if (world.rank() == 0) work.print(prefill_s, all_s);
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera;
  bench::Options options;
  options.layout.model.config = "bloom-tiny";
  try {
    programs::FlagSet flags("bench_generation", "Prompts a second, prefill and decode apart.");
    bench::add_flags(flags, options);
    bench::start(&argc, argv, flags.help());
    flags.parse({argv + 1, argv + argc});
    if (flags.help_requested() || flags.print_config_requested()) {
      std::cout << (flags.help_requested() ? flags.help() : flags.config_json() + "\n");
      return 0;
    }
    programs::validate_layout(options.layout);
    programs::set_numerics(options.layout);
    check(options.max_new_tokens >= 2 && options.iterations >= 1 && options.prompts >= 1,
          ErrorCode::kInvalidArgument,
          "--max_new_tokens must be at least 2, --iterations and --prompts at least 1");
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return exit_code(error.code());
  }
  return run_job({.transport = options.layout.run.backend},
                 [&](Communicator& world, const LaunchInfo&, ControlChannel&) {
                   bench::run_rank(world, options);
                 });
}
