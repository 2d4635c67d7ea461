#include "lib/testing/fuzz_draw.h"

#include <algorithm>

#include "lib/testing/fuzz_blocks.h"
#include "tessera/core/error.h"

namespace tessera::testing {
namespace {

using Random = std::mt19937_64;

template <typename T>
T pick(Random& random, const std::vector<T>& values) {
  return values[random() % values.size()];
}
std::string word(Random& random, const std::vector<const char*>& words) {
  return pick(random, words);
}

void draw_mesh(Random& random, const FuzzOptions& options, const FuzzFamily& family,
               const ModelSpec& model, FuzzCase& c) {
  const auto blocks = static_cast<int>(model.block_count());
  do {
    c.mesh.pipeline = pick<int>(random, {1, 1, 1, 2, 2, 3, 4, 5});
    c.mesh.data = pick<int>(random, {1, 1, 2, 2, 2, 3, 4, 5, 8});
    c.mesh.tensor = family.tensor_axis ? pick<int>(random, {1, 1, 2, 2, 3, 4}) : 1;
    if (model.tensor_divisor == 0 || model.tensor_divisor % c.mesh.tensor != 0) c.mesh.tensor = 1;
  } while (c.ranks() > 8 || c.mesh.pipeline > blocks ||
           c.mesh.pipeline > options.largest.pipeline || c.mesh.data > options.largest.data ||
           c.mesh.tensor > options.largest.tensor);
}

void draw_pipeline(Random& random, const FuzzFamily& family, const ModelSpec& model, FuzzCase& c) {
  PipelineConfig& pipeline = c.parallel.pipeline;
  if (c.mesh.pipeline == 1) return;
  const auto blocks = static_cast<int>(model.block_count());
  pipeline.schedule = word(random, {"gpipe", "1f1b", "interleaved"});
  if (pipeline.schedule == "interleaved") {
    const int most = std::min(blocks / c.mesh.pipeline, 4);
    if (most < 2) {
      pipeline.schedule = "1f1b";
    } else {
      pipeline.chunks = 2 + static_cast<int>(random() % static_cast<uint64_t>(most - 1));
    }
  }
  if (family.shared_vocabulary && pipeline.schedule != "interleaved" && c.mesh.tensor == 1 &&
      blocks - 2 >= c.mesh.pipeline && c.vocabulary >= 4L * c.mesh.pipeline) {
    pipeline.shared_vocabulary = chance(random, 50);
  }
  pipeline.balance = word(random, {"flops", "parameters"});
  if (chance(random, 20)) {
    for (int i = 0; i < blocks; ++i) {
      pipeline.block_costs.push_back(static_cast<double>(random() % 5));
    }
  }
}

void draw_precision(Random& random, FuzzCase& c) {
  PrecisionConfig& precision = c.parallel.precision;
  if (chance(random, 50)) {
    if (chance(random, 15))
      precision.reduce = pick<at::ScalarType>(random, {at::kHalf, at::kBFloat16});
    return;
  }
  precision.parameter = chance(random, 50) ? at::kBFloat16 : at::kHalf;
  if (chance(random, 50)) precision.gradient = at::kFloat;
  if (chance(random, 50)) {
    precision.reduce = chance(random, 50) ? at::kFloat : precision.parameter;
  }
}

void draw_offload(Random& random, FuzzCase& c) {
  OffloadConfig& offload = c.parallel.offload;
  offload.pin_memory = chance(random, 50);
  const std::string& strategy = c.parallel.strategy;
  if (strategy == "ddp" || !chance(random, 30)) return;
  const bool cuts_parameters = strategy == "zero3" || strategy == "fsdp";
  offload.what = cuts_parameters && c.parallel.shard_ranks != 1 && chance(random, 60)
                     ? Offload::kOptimizerAndParameters
                     : Offload::kOptimizer;
  offload.step =
      pick<OffloadStep>(random, {OffloadStep::kAuto, OffloadStep::kHost, OffloadStep::kDevice});
  offload.threads = pick<int>(random, {0, 1, 2});
  offload.chunk_numel = pick<int64_t>(random, {7, 64, 1000, 16 << 20});
}

void draw_strategy(Random& random, const FuzzOptions& options, FuzzCase& c) {
  ParallelConfig& p = c.parallel;
  std::vector<std::string> names;
  for (const std::string& name : strategy_names()) {
    const auto& only = options.only_strategies;
    const bool wanted = only.empty() || std::ranges::find(only, name) != only.end();
    if (wanted && (name != "single" || c.mesh.data == 1)) names.push_back(name);
  }
  if (names.empty()) {
    names = {"single"};
    c.mesh.data = 1;
  }
  p.strategy = pick(random, names);
  p.bucket_bytes = pick<int64_t>(random, {1, 300, 4000, 25 << 20});
  p.overlap = chance(random, 60);
  p.reduce_at_boundary = chance(random, 30);
  p.persistence_threshold = pick<int64_t>(random, {0, 20, 100, 100'000});
  p.prefetch_blocks = pick<int>(random, {0, 1, 1, 2, 5});
  p.gradient_checkpointing = chance(random, 35);
  if (p.strategy == "fsdp") {
    p.unit_numel = pick<int64_t>(random, {0, 0, 100, 600, 3000, 1 << 30});
    p.reshard_after_forward = chance(random, 65);
    std::vector<int> divisors{0};
    for (int d = 1; d <= c.mesh.data; ++d) {
      if (c.mesh.data % d == 0) divisors.push_back(d);
    }
    p.shard_ranks = pick(random, divisors);
  }
  draw_offload(random, c);
}

std::string some_steps(Random& random, int steps) {
  std::string text;
  for (int s = 0; s < steps; ++s) {
    if (chance(random, 50)) text += static_cast<char>('0' + s);
  }
  return text;
}

void draw_work(Random& random, FuzzCase& c) {
  c.steps = pick<int>(random, {2, 2, 3, 4});
  c.accumulation = pick<int>(random, {1, 1, 2, 3, 4, 6});
  c.rows = pick<int64_t>(random, {1, 2, 3});
  c.length = pick<int64_t>(random, {2, 3, 5});
  c.ragged = chance(random, 40);
  if (chance(random, 40)) {
    c.untargeted = word(random, {"rows", "micro_batches", "ranks", "step"});
  }
  if (chance(random, 20)) c.skip = some_steps(random, c.steps);
  if (chance(random, 40)) c.evaluate = some_steps(random, c.steps);
  const bool half = c.parallel.precision.parameter == at::kHalf;
  c.loss_scale = half ? pick<double>(random, {0, 1024, 1024, 65536, 0x1p40})
                      : pick<double>(random, {0, 0, 0, 1024, 3});
  c.max_norm = pick<double>(random, {0, 0.1, 0.1, 100});
  c.learning_rate = pick<double>(random, {1e-2, 1e-3});
  c.weight_decay = pick<double>(random, {0, 0.1});
  c.beta2 = pick<double>(random, {0.999, 0.9});
  c.epsilon = pick<double>(random, {1e-8, 1e-3});
}

void draw_refusal(Random& random, FuzzCase& c) {
  if (!chance(random, 4)) return;
  std::vector<const char*> kinds{"target_count"};
  if (c.mesh.data > 1) kinds.push_back("micro_batches");
  if (c.mesh.pipeline > 1 || c.mesh.tensor > 1) kinds.push_back("batch");
  if (c.mesh.data > 1 && c.model == "toy") {
    if (c.tie != "last") kinds.push_back("weights");  // else the embedding has none of its own
    kinds.push_back("layout");
  }
  c.refuse = word(random, kinds);
  c.rows = 8;
  c.length = 3;
  c.ragged = false;
  c.untargeted = "none";
}

}  // namespace

FuzzCase draw_case(Random& random, const FuzzOptions& options) {
  FuzzCase c;
  std::vector<std::string> models;
  for (const auto& [name, family] : options.families) {
    const auto& only = options.only_models;
    if (!only.empty() && std::ranges::find(only, name) == only.end()) continue;
    // Hand-written blocks have the most ways to differ.
    models.insert(models.end(), name == "toy" ? 5 : name == "modules" ? 2 : 1, name);
  }
  check(!models.empty(), ErrorCode::kInvalidArgument, "fuzz: no family of models is left");
  c.seed = 1 + random() % 100'000;
  c.model = pick(random, models);
  const FuzzFamily& family = options.families.at(c.model);
  family.draw(random, c);
  const ModelSpec model = family.build(c).model;
  draw_mesh(random, options, family, model, c);
  if (!options.own_strategy) {
    draw_strategy(random, options, c);
    draw_pipeline(random, family, model, c);
    draw_precision(random, c);
    c.parallel.sequence_parallel =
        family.sequence_parallel && c.mesh.tensor > 1 && chance(random, 50);
  }
  draw_work(random, c);
  if (!options.own_strategy) draw_refusal(random, c);
  return c;
}

}  // namespace tessera::testing
