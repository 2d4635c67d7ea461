// SPDX-License-Identifier: MIT
#include <algorithm>
#include <iterator>
#include <string>

#include "backends/check_config.h"
#include "backends/layout_fields.h"
#include "backends/pipeline/schedule_kinds.h"
#include "backends/strategy_kinds.h"
#include "lib/testing/fuzz_draw.h"

namespace tessera::testing {
namespace {

using Cases = std::vector<FuzzCase>;

void add(Cases& cases, const FuzzCase& c, const std::function<void(FuzzCase&)>& change) {
  FuzzCase changed = c;
  change(changed);
  if (to_line(changed) != to_line(c)) cases.push_back(std::move(changed));
}

void make_consistent(MeshExtents& mesh, ParallelConfig& parallel) {
  PipelineConfig& pipeline = parallel.pipeline;
  if (mesh.pipeline == 1) pipeline = {};
  if (is(pipeline.schedule, ScheduleKind::kInterleaved) && pipeline.chunks == 1) {
    pipeline.schedule = name_of(ScheduleKind::kOneFOneB);
  }
  if (mesh.tensor == 1) parallel.sequence_parallel = false;
  const bool divides = mesh.data % mesh.expert == 0 && mesh.tensor * mesh.context == 1;
  if (!divides || !is_legal(parallel, mesh)) mesh.expert = 1;
  if (mesh.context == 1) parallel.context_attention = ContextAttention::kAuto;
  if (is(parallel.strategy, StrategyKind::kSingle) && mesh.sharding() > 1) {
    parallel.strategy = name_of(StrategyKind::kDdp);
  }
  if (parallel.shard_ranks > 0 && mesh.sharding() % parallel.shard_ranks != 0)
    parallel.shard_ranks = 0;
  if (!has_setting(parallel.strategy, "unit_numel")) {
    parallel.unit_numel = 0;
    parallel.shard_ranks = 0;
    parallel.reshard_after_forward = true;
  }
}

// Adjusts fields that depend on a size.
FuzzCase consistent(FuzzCase c) {
  make_consistent(c.mesh, c.parallel);
  c.resume = std::min(c.resume, c.steps - 1);
  if (c.resume == 0) c.then = {};
  if (c.mesh.data * c.accumulation % c.then.mesh.data != 0) c.then.mesh.data = 1;
  if (c.resume > 0 && c.then.mesh.data != c.mesh.data) c.calls = 1;
  make_consistent(c.then.mesh, c.then.parallel);
  const auto in_range = [&](std::string& steps) {
    std::erase_if(steps, [&](char digit) { return digit - '0' >= c.steps; });
  };
  in_range(c.skip);
  in_range(c.evaluate);
  return c;
}

// True if a reset enlarges a size: defaults are not the least values, so a reset could undo a
// reduction in an endless loop.
bool grows(const std::string& key, const std::string& from, const std::string& to) {
  const char* const sizes[] = {"steps",  "rows",  "length",    "vocabulary", "hidden",
                               "layers", "heads", "key_heads", "head_dim",   "lora"};
  return std::find(std::begin(sizes), std::end(sizes), key) != std::end(sizes) &&
         std::stoll(to) > std::stoll(from);
}

// The case with these fields at their defaults.
FuzzCase without(const FuzzCase& c, const std::vector<std::string>& keys) {
  const auto defaults = fields_of({}), fields = fields_of(c);
  std::string line;
  for (size_t i = 0; i < fields.size(); ++i) {
    const auto& [key, value] = fields[i];
    const bool reset =
        std::ranges::find(keys, key) != keys.end() && !grows(key, value, defaults[i].second);
    const std::string& text = reset ? defaults[i].second : value;
    if (!text.empty()) line += key + "=" + text + " ";
  }
  return parse_case(line);
}

// Groups of rarely relevant fields, reset together: each failing run may cost a timeout.
std::vector<std::vector<std::string>> groups() {
  std::vector<std::string> tuning, others;
  for (const LayoutField& field : layout_fields()) {
    if (field.changes == Changes::kNumbers || field.name == std::string("strategy")) continue;
    (field.more.refused || field.more.apart ? others : tuning).emplace_back(field.name);
  }
  std::erase(others, "pipeline_schedule");
  std::erase(others, "pipeline_chunks");
  return {
      {"dtype", "gradient_dtype", "reduce_dtype", "fp8", "fp8_layers", "frozen_dtype",
       "loss_scale"},
      tuning,
      others,
      {"steps", "rows", "length", "ragged", "padded", "packed", "supervised_only", "untargeted",
       "skip", "evaluate"},
      {"groups", "decay", "optimizer", "moments", "min_8bit_size"},
      {"max_norm", "learning_rate", "weight_decay", "beta1", "beta2", "epsilon"},
      {"tie", "frozen", "column_scale", "own_weights", "whole_module", "vocabulary", "hidden",
       "hidden_dropout", "attention_dropout", "fused"},
  };
}

int64_t inner_blocks(const FuzzCase& c) {
  return c.layers + (c.blocks == "-" ? 0 : 1 + std::ranges::count(c.blocks, '.'));
}

void add_smaller_meshes(Cases& cases, const FuzzCase& c) {
  for (int MeshExtents::*axis : {&MeshExtents::pipeline, &MeshExtents::data, &MeshExtents::tensor,
                                 &MeshExtents::context, &MeshExtents::expert}) {
    for (int extent : {1, c.mesh.*axis / 2, c.mesh.*axis - 1}) {
      if (extent >= 1) add(cases, c, [&](FuzzCase& d) { d.mesh.*axis = extent; });
    }
  }
}

// Simpler resumes: none, the same layout, or fewer ranks.
void add_smaller_resumes(Cases& cases, const FuzzCase& c) {
  if (c.resume == 0) return;
  add(cases, c, [](FuzzCase& d) { d.resume = 0; });
  add(cases, c, [](FuzzCase& d) {
    d.then = {d.mesh, d.parallel};
    d.then.parallel.precision = {};
  });
  for (int MeshExtents::*axis : {&MeshExtents::pipeline, &MeshExtents::data, &MeshExtents::tensor,
                                 &MeshExtents::context, &MeshExtents::expert}) {
    add(cases, c, [&](FuzzCase& d) { d.then.mesh.*axis = 1; });
  }
}

Cases with_fewer_blocks(const FuzzCase& c, const FuzzFamily& family) {
  Cases cases = family.smaller ? family.smaller(c) : Cases{};
  std::erase_if(cases, [&](const FuzzCase& d) { return inner_blocks(d) >= inner_blocks(c); });
  return cases;
}

// Fewer ranks or blocks in exchange for other non-default fields: other seeds for rounding
// failures, other units for grouping failures.
Cases exchanges(const FuzzCase& c, const FuzzFamily& family) {
  constexpr int64_t kFewBlocks = 8;
  Cases meshes, cases;
  add_smaller_meshes(meshes, c);
  for (const FuzzCase& mesh : meshes) {
    if (mesh.ranks() >= c.ranks()) continue;
    for (uint64_t seed : {1, 2, 3, 4}) {
      for (int more : {0, 3}) {
        add(cases, mesh, [&](FuzzCase& d) {
          d.seed = seed;
          d.accumulation += more;
        });
      }
    }
  }
  Cases models = with_fewer_blocks(c, family);
  if (inner_blocks(c) <= kFewBlocks) {
    for (const FuzzCase& once : with_fewer_blocks(c, family)) {
      const Cases twice = with_fewer_blocks(once, family);
      models.insert(models.end(), twice.begin(), twice.end());
    }
  }
  const int64_t unit = c.parallel.unit_numel;
  for (FuzzCase& d : models) {
    d.parallel.pipeline.block_costs.clear();
    d.parallel.recomputed_blocks.clear();
    d.parallel.overlap = false;
    cases.push_back(d);
    for (int64_t numel : {int64_t{10}, int64_t{40}, unit / 2, unit / 4}) {
      if (unit > 0 && numel > 0) add(cases, d, [&](FuzzCase& e) { e.parallel.unit_numel = numel; });
    }
  }
  return cases;
}

Cases reductions(const FuzzCase& c, const FuzzFamily& family) {
  Cases cases;
  std::vector<std::string> all;
  for (const auto& group : groups()) all.insert(all.end(), group.begin(), group.end());
  cases.push_back(without(c, all));
  for (const auto& group : groups()) cases.push_back(without(c, group));
  add_smaller_meshes(cases, c);
  add_smaller_resumes(cases, c);
  if (family.smaller) {
    for (FuzzCase& d : family.smaller(c)) {
      // Both are indexed by block, so they are dropped with the block list.
      d.parallel.pipeline.block_costs.clear();
      d.parallel.recomputed_blocks.clear();
      cases.push_back(std::move(d));
    }
  }
  for (int steps : {1, c.steps - 1}) {
    if (steps >= 1) add(cases, c, [&](FuzzCase& d) { d.steps = steps; });
  }
  for (int micro_batches : {1, c.accumulation - 1}) {
    if (micro_batches >= 1) add(cases, c, [&](FuzzCase& d) { d.accumulation = micro_batches; });
  }
  if (c.calls > 2) add(cases, c, [](FuzzCase& d) { d.calls = 2; });
  if (c.parallel.pipeline.chunks > 2)
    add(cases, c, [](FuzzCase& d) { d.parallel.pipeline.chunks = 2; });
  for (const auto& [key, value] : fields_of(c)) {
    if (key != "model" && key != "blocks" && key != "refuse") cases.push_back(without(c, {key}));
  }
  add(cases, c, [](FuzzCase& d) { d.rows = std::max<int64_t>(1, d.rows / 2); });
  add(cases, c, [](FuzzCase& d) { d.length = std::max<int64_t>(1, d.length / 2); });
  add(cases, c, [](FuzzCase& d) { d.vocabulary = std::min<int64_t>(d.vocabulary, 5); });
  if (!is(c.parallel.strategy, StrategyKind::kSingle)) {
    add(cases, c, [](FuzzCase& d) { d.parallel.strategy = name_of(StrategyKind::kDdp); });
  }
  const Cases bargains = exchanges(c, family);
  cases.insert(cases.end(), bargains.begin(), bargains.end());
  return cases;
}

}  // namespace

FuzzCase shrink_case(const FuzzCase& failing, const FuzzFamily& family,
                     const std::function<bool(const FuzzCase&)>& fails, int attempts) {
  FuzzCase smallest = failing;
  size_t next = 0, in_vain = 0;
  for (Cases cases = reductions(smallest, family); in_vain < cases.size() && attempts > 0;) {
    const FuzzCase legal = consistent(cases[next++ % cases.size()]);
    ++in_vain;
    if (to_line(legal) == to_line(smallest) || attempts-- == 0 || !fails(legal)) continue;
    const bool bargain =
        legal.ranks() < smallest.ranks() || inner_blocks(legal) < inner_blocks(smallest);
    smallest = legal;
    cases = reductions(smallest, family);
    in_vain = 0;
    // A smaller case starts over; otherwise goes on with the reduction now at this index.
    next = bargain ? 0 : next - 1;
  }
  return smallest;
}

}  // namespace tessera::testing
