// SPDX-License-Identifier: MIT
#include "lib/testing/fuzz_draw.h"

#include <algorithm>

#include "backends/check_config.h"
#include "backends/layout_fields.h"
#include "backends/pipeline/schedule_kinds.h"
#include "lib/testing/fuzz_blocks.h"
#include "lib/testing/oracle.h"
#include "tessera/core/error.h"
#include "tessera/optim/matrix_optimizer.h"

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

// True if the input to be rejected is possible on this mesh.
bool can_refuse(const FuzzCase& c) {
  if (c.refuse == "none" || c.refuse == "target_count") return true;
  return c.refuse == "batch" ? c.mesh.pipeline * c.mesh.tensor > 1 : c.mesh.data > 1;
}

int draw_tensor(Random& random, const FuzzFamily& family, const ModelSpec& model) {
  if (!family.tensor_axis || model.tensor_divisor == 0 || chance(random, 45)) return 1;
  std::vector<int> legal{1};
  for (int extent : {2, 3, 4}) {
    if (model.tensor_divisor % extent == 0) legal.push_back(extent);
  }
  return pick(random, legal);
}

void draw_mesh(Random& random, const FuzzOptions& options, const FuzzFamily& family,
               const ModelSpec& model, FuzzCase& c) {
  const auto blocks = static_cast<int>(model.block_count());
  const MeshExtents& largest = options.largest;
  constexpr int kAttempts = 1000;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    c.mesh.pipeline = pick<int>(random, {1, 1, 1, 1, 2, 2, 2, 3, 4, 5});
    c.mesh.data = pick<int>(random, {1, 1, 2, 2, 2, 3, 4, 5, 8});
    c.mesh.tensor = draw_tensor(random, family, model);
    if (c.ranks() <= 8 && c.mesh.pipeline <= blocks && c.mesh.pipeline <= largest.pipeline &&
        c.mesh.data <= largest.data && c.mesh.tensor <= largest.tensor && can_refuse(c)) {
      return;
    }
  }
  c.mesh = {};
  if (!can_refuse(c)) c.refuse = "none";
}

void draw_pipeline(Random& random, const FuzzFamily& family, const ModelSpec& model, FuzzCase& c) {
  PipelineConfig& pipeline = c.parallel.pipeline;
  if (c.mesh.pipeline == 1) return;
  const auto blocks = static_cast<int>(model.block_count());
  pipeline.schedule = pick(random, all_names<ScheduleKind>());
  // Units of several blocks meet the ends of chunks only here.
  if (c.parallel.unit_numel > 0 && chance(random, 60))
    pipeline.schedule = name_of(ScheduleKind::kInterleaved);
  if (is(pipeline.schedule, ScheduleKind::kInterleaved)) {
    const int most = std::min(blocks / c.mesh.pipeline, 4);
    if (most < 2) {
      pipeline.schedule = name_of(ScheduleKind::kOneFOneB);
    } else {
      pipeline.chunks = chance(random, 40)
                            ? most
                            : 2 + static_cast<int>(random() % static_cast<uint64_t>(most - 1));
    }
  }
  const bool can_share =
      is(pipeline.schedule, ScheduleKind::kGPipe) || is(pipeline.schedule, ScheduleKind::kOneFOneB);
  if (family.shared_vocabulary && can_share && c.mesh.tensor == 1 &&
      blocks - 2 >= c.mesh.pipeline && c.vocabulary >= 4L * c.mesh.pipeline) {
    pipeline.shared_vocabulary = chance(random, 50);
  }
  if (chance(random, 20)) {
    for (int i = 0; i < blocks; ++i) {
      pipeline.block_costs.push_back(static_cast<double>(random() % 5));
    }
  }
}

void draw_precision(Random& random, const FuzzFamily& family, FuzzCase& c) {
  PrecisionConfig& precision = c.parallel.precision;
  if (chance(random, 50) || has_running_statistics(c) || family.fp32_only) {
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

// Draws fields by their table, where legal and read.
void draw_fields(Random& random, const MeshExtents& mesh, ParallelConfig& parallel) {
  for (const LayoutField& field : layout_fields()) {
    if (field.more.apart || !field.why_idle(parallel, mesh).empty()) continue;
    const ParallelConfig before = parallel;
    set_text(field.field(parallel), pick(random, field.drawn()));
    if (!is_legal(parallel, mesh)) parallel = before;
  }
}

// Unit size: one block, or a run of blocks, of the model.
int64_t draw_unit(Random& random, const ModelSpec& model, const FuzzCase& c) {
  if (chance(random, c.mesh.pipeline > 1 ? 15 : 30)) return 0;
  if (chance(random, 15)) return 1 << 30;
  const size_t first = random() % model.block_count();
  const size_t count = 1 + random() % 3;
  int64_t numel = chance(random, 50) ? 1 : 0;  // together with the next block, or not
  for (size_t i = first; i < std::min(first + count, model.block_count()); ++i) {
    for (const Parameter& p : model.blocks[i].build({.seed = c.seed})->parameters()) {
      numel += p.tensor.numel();
    }
  }
  return std::max<int64_t>(1, numel);
}

void draw_strategy(Random& random, const FuzzOptions& options, const ModelSpec& model,
                   FuzzCase& c) {
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
  // More weight for strategies with units: boundaries of units and chunks are error-prone.
  if (c.mesh.pipeline > 1 && has_setting(names.back(), "unit_numel")) {
    names.push_back(names.back());
  }
  p.strategy = pick(random, names);
  if (has_setting(p.strategy, "unit_numel")) {
    p.unit_numel = draw_unit(random, model, c);
    std::vector<int> divisors{0};
    for (int d = 1; d <= c.mesh.data; ++d) {
      if (c.mesh.data % d == 0) divisors.push_back(d);
    }
    p.shard_ranks = pick(random, divisors);
  }
}

// For a case with drawn model, mesh and precision.
void draw_layout(Random& random, const FuzzOptions& options, const FuzzFamily& family,
                 const ModelSpec& model, FuzzCase& c) {
  draw_strategy(random, options, model, c);
  draw_pipeline(random, family, model, c);
  c.parallel.sequence_parallel =
      family.sequence_parallel && c.mesh.tensor > 1 && chance(random, 50);
  draw_fields(random, c.mesh, c.parallel);
  if (!c.parallel.gradient_checkpointing && chance(random, 40)) {
    for (size_t block = 0; block + 1 < model.block_count(); ++block) {
      if (chance(random, 50)) c.parallel.recomputed_blocks.push_back(static_cast<int64_t>(block));
    }
  }
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
  // Chunks alternate only if there are several.
  const bool in_chunks = c.parallel.pipeline.chunks > 1;
  if (in_chunks && chance(random, 70)) c.accumulation = pick<int>(random, {2, 3, 4, 6});
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
  c.groups = chance(random, 30);
  c.decay = word(random, {"matrices", "matrices", "all"});
  c.optimizer = word(random, oracle_optimizers());
}

// Drawn last, so that other draws keep their values. Parameters of several 8-bit blocks are rare.
void draw_moments(Random& random, const FuzzOptions& options, FuzzCase& c) {
  const bool has = c.optimizer == "adamw" || c.optimizer == "adam";
  if (options.own_strategy || !has || c.refuse != "none") return;
  c.moments = word(random, {"fp32", "bf16", "int8", "int8"});
  if (c.moments != "int8") return;
  c.min_8bit_size = pick<int64_t>(random, {1, 200, 300});
  if (c.model == "toy" && chance(random, 60)) c.vocabulary = 101;
  // Squares of gradients in one block differ by 2^26; in fp16 the small gradients would underflow.
  const bool half = c.parallel.precision.parameter == at::kHalf;
  if (c.model == "toy" && !half && chance(random, 50)) c.column_scale = 0x1p-13;
}

// Drawn before the model and the mesh, which must allow it.
std::string draw_refusal(Random& random, const FuzzOptions& options) {
  if (options.own_strategy || !chance(random, 8)) return "none";
  std::vector<const char*> kinds{"target_count", "micro_batches", "batch"};
  const auto& only = options.only_models;
  if (options.families.contains("toy") &&
      (only.empty() || std::ranges::find(only, "toy") != only.end())) {
    kinds.insert(kinds.end(), {"weights", "layout"});
  }
  return word(random, kinds);
}

// Resumes in the same layout, or in another.
void draw_resume(Random& random, const FuzzOptions& options, const FuzzFamily& family,
                 const ModelSpec& model, FuzzCase& c) {
  if (options.own_strategy || c.refuse != "none" || !chance(random, 30)) return;
  c.resume = 1 + static_cast<int>(random() % static_cast<uint64_t>(c.steps - 1));
  c.then = {c.mesh, c.parallel};
  c.then.parallel.precision = {};
  if (chance(random, 25)) return;
  FuzzCase other = c;
  other.parallel = {};
  do {
    draw_mesh(random, options, family, model, other);
  } while (c.mesh.data * c.accumulation % other.mesh.data != 0);
  other.parallel.precision = c.parallel.precision;
  draw_layout(random, options, family, model, other);
  other.parallel.precision = {};
  c.then = {other.mesh, other.parallel};
}

// True if there is a matrix for Muon, which rejects models without one.
bool has_hidden_matrix(const ModelSpec& model) {
  return std::ranges::any_of(parameters_of(model), [](const ParameterInfo& parameter) {
    return parameter.trained && !parameter.alias && parameter.shape.size() == 2 &&
           hidden_matrices()(parameter.block, parameter.name, parameter.shape);
  });
}

// Fields that make the disturbance effective.
void fit_refusal(FuzzCase& c) {
  if (c.refuse == "none") return;
  c.rows = 8;
  c.length = 3;
  c.ragged = false;
  c.untargeted = "none";
}

// Whether ranks can share the rows in this layout. The oracle drops by the seeds that a head of
// whole rows notes.
bool takes_context(const FuzzCase& c, const ParallelConfig& parallel) {
  return c.hidden_dropout == 0 && c.attention_dropout == 0 && parallel.strategy != "single";
}

// Drawn last, so that other draws keep their values.
void draw_context(Random& random, const FuzzOptions& options, const FuzzFamily& family,
                  FuzzCase& c) {
  if (options.own_strategy || !family.context_axis || c.refuse != "none" || chance(random, 30)) {
    return;
  }
  if (chance(random, 40)) c.hidden_dropout = c.attention_dropout = 0;
  const auto draw = [&](MeshExtents& mesh, ParallelConfig& parallel) {
    if (!takes_context(c, parallel)) return;
    mesh.context = pick<int>(random, {2, 3, 4});
    if (mesh.ranks() > 8) mesh.context = 2;
    if (mesh.ranks() > 8 || mesh.context > options.largest.context) mesh.context = 1;
    if (mesh.context == 1) return;
    using enum ContextAttention;
    const int64_t shares = int64_t{mesh.tensor} * mesh.context;
    const bool divide = c.heads % shares == 0 && c.key_heads % shares == 0;
    parallel.context_attention = divide ? pick<ContextAttention>(random, {kAuto, kHeads, kKeys})
                                        : pick<ContextAttention>(random, {kAuto, kKeys});
    if (chance(random, 50)) c.length = pick<int64_t>(random, {5, 8});
  };
  draw(c.mesh, c.parallel);
  if (c.resume > 0) draw(c.then.mesh, c.then.parallel);
}

// Drawn last, too. Adapters of experts take no dropout there.
void draw_expert(Random& random, const FuzzOptions& options, const FuzzFamily& family,
                 const ModelSpec& model, FuzzCase& c) {
  if (options.own_strategy || !family.expert_axis || model.expert_divisor == 0) return;
  if (c.refuse != "none" || c.optimizer == "muon" || (c.lora > 0 && c.hidden_dropout > 0)) return;
  const auto draw = [&](MeshExtents& mesh, ParallelConfig& parallel) {
    ParallelConfig with_axis = parallel;  // offload goes with none
    with_axis.offload = {};
    std::vector<int> legal;
    for (int extent = 2; extent <= mesh.data; ++extent) {
      MeshExtents with = mesh;
      with.expert = extent;
      if (model.expert_divisor % extent == 0 && is_legal(with_axis, with)) legal.push_back(extent);
    }
    if (legal.empty() || chance(random, 40)) return;
    mesh.expert = pick(random, legal);
    parallel = with_axis;
  };
  draw(c.mesh, c.parallel);
  if (c.resume > 0) draw(c.then.mesh, c.then.parallel);
}

void draw_fp8(Random& random, const FuzzOptions& options, const FuzzFamily& family, FuzzCase& c) {
  const bool cut = c.mesh.context > 1 || c.then.mesh.context > 1;
  if (options.own_strategy || !family.fp8 || cut || c.refuse != "none") return;
  c.parallel.precision.fp8 =
      pick<Fp8>(random, {Fp8::kOff, Fp8::kOff, Fp8::kTensorwise, Fp8::kRowwise});
  if (c.parallel.precision.fp8 == Fp8::kOff) return;
  for (const auto& [parallel, mesh] :
       {std::pair(&c.parallel, c.mesh), {&c.then.parallel, c.then.mesh}}) {
    ParallelConfig values = *parallel;
    values.precision.fp8 = c.parallel.precision.fp8;
    values.fp8_all_gather = true;
    if (sharding_rules(values, mesh).coded_layers.any()) {
      parallel->fp8_all_gather = chance(random, 70);
    }
  }
  if (chance(random, 60)) return;
  c.parallel.precision.fp8_layers = pick<const char*>(random, {"qkv", "up,down", "qkv,o,down"});
}

// Not with one scale a matrix in products: those take stored codes with their own scale, which the
// oracle's rounding of products does not know. Parity tests hold it.
void draw_frozen_dtype(Random& random, const FuzzOptions& options, FuzzCase& c) {
  if (options.own_strategy || c.lora == 0 || c.refuse != "none") return;
  if (c.parallel.precision.fp8 == Fp8::kTensorwise || chance(random, 50)) return;
  c.parallel.precision.frozen = FrozenDtype::kFp8;
}

}  // namespace

FuzzCase draw_case(Random& random, const FuzzOptions& options) {
  FuzzCase c;
  std::vector<std::string> models;
  for (const auto& [name, family] : options.families) {
    const auto& only = options.only_models;
    if (!only.empty() && std::ranges::find(only, name) == only.end()) continue;
    // Hand-written blocks vary most.
    models.insert(models.end(),
                  name == "toy"                          ? 5
                  : name == "modules" || name == "chain" ? 2
                                                         : 1,
                  name);
  }
  check(!models.empty(), ErrorCode::kInvalidArgument, "fuzz: no family of models is left");
  c.seed = 1 + random() % 100'000;
  c.refuse = draw_refusal(random, options);
  const bool of_toy = c.refuse == "weights" || c.refuse == "layout";
  c.model = of_toy ? "toy" : pick(random, models);
  const FuzzFamily& family = options.families.at(c.model);
  family.draw(random, c);
  // The embedding then has its own weight.
  if (c.refuse == "weights" && c.tie == "last") c.tie = "first";
  const ModelSpec model = family.build(c).model;
  draw_mesh(random, options, family, model, c);
  if (!options.own_strategy) {
    draw_precision(random, family, c);
    draw_layout(random, options, family, model, c);
  }
  draw_work(random, c);
  if (c.optimizer == "muon" && !has_hidden_matrix(model)) c.optimizer = "adamw";
  fit_refusal(c);
  draw_resume(random, options, family, model, c);
  const bool same_calls = c.resume == 0 || c.then.mesh.data == c.mesh.data;
  if (c.refuse == "none" && same_calls) c.calls = pick<int>(random, {1, 1, 1, 2, 3});
  draw_moments(random, options, c);
  draw_context(random, options, family, c);
  draw_fp8(random, options, family, c);
  draw_frozen_dtype(random, options, c);
  draw_expert(random, options, family, model, c);
  return c;
}

}  // namespace tessera::testing
