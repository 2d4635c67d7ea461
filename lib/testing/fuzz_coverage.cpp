// SPDX-License-Identifier: MIT
#include "lib/testing/fuzz_coverage.h"

#include <algorithm>
#include <set>

#include "backends/check_config.h"
#include "backends/layout_fields.h"
#include "backends/pipeline/schedule_kinds.h"
#include "lib/testing/fuzz_blocks.h"
#include "lib/testing/oracle.h"
#include "tessera/core/error.h"

namespace tessera::testing {
namespace {

using Values = std::vector<std::string>;
using When = std::function<bool(const FuzzCase&)>;

bool is_language_model(const FuzzCase& c) {
  return c.model != "toy" && c.model != "modules" && c.model != "chain" &&
         !c.model.starts_with("program-");
}
// Experts whose routers have losses.
bool has_router_losses(const FuzzCase& c) {
  return c.model == "mixtral" || c.model == "olmoe" || c.model == "qwen2_moe" ||
         c.model == "qwen3_moe";
}
// Experts that ranks of an expert axis can divide.
bool has_divisible_experts(const FuzzCase& c) {
  return has_router_losses(c) || c.model == "glm4_moe";
}
bool has_stages(const FuzzCase& c) { return c.mesh.pipeline > 1; }
bool offloads(const FuzzCase& c) { return c.parallel.offload.what != Offload::kNone; }
bool has_moments(const FuzzCase& c) { return c.optimizer == "adamw" || c.optimizer == "adam"; }
bool always(const FuzzCase&) { return true; }

std::string field_of(const FuzzCase& c, const std::string& name) {
  for (const auto& [key, value] : fields_of(c)) {
    if (key == name) return value;
  }
  fail(ErrorCode::kInternal, "a case has no field \"", name, "\"");
}

// A field's value, counted where `when` holds.
FuzzFeature field(const std::string& name, const Values& values, const When& when = always) {
  return {name, values,
          [=](const FuzzCase& c) { return when(c) ? Values{field_of(c, name)} : Values{}; }};
}
FuzzFeature feature(const std::string& name, const Values& values,
                    const std::function<std::string(const FuzzCase&)>& of,
                    const When& when = always) {
  return {name, values, [=](const FuzzCase& c) { return when(c) ? Values{of(c)} : Values{}; }};
}
Values range(int first, int last) {
  Values values;
  for (int i = first; i <= last; ++i) values.push_back(std::to_string(i));
  return values;
}

// Distinct kinds of blocks.
FuzzFeature kinds(const std::string& model, const std::string& letters) {
  Values values;
  for (char letter : letters) values.emplace_back(1, letter);
  return {model + " blocks", values, [=](const FuzzCase& c) {
            Values found;
            for (char letter : letters) {
              if (c.model == model && c.blocks.find(letter) != std::string::npos) {
                found.emplace_back(1, letter);
              }
            }
            return found;
          }};
}

std::string count_of_blocks(const FuzzCase& c) {
  const int64_t body = c.blocks == "-" ? 0 : 1 + std::ranges::count(c.blocks, '.');
  const int64_t count = is_language_model(c) ? c.layers : body;
  return count > 6 ? "7+" : count > 2 ? "3-6" : std::to_string(count);
}

Values frozen_in(const FuzzCase& c) {
  Values found;
  if (c.frozen != "none") found.push_back(c.frozen + " block");
  if (c.blocks.find('f') != std::string::npos) found.emplace_back("block");
  if (c.blocks.find('g') != std::string::npos) found.emplace_back("part of a block");
  if (found.empty()) found.emplace_back("nothing");
  return found;
}

// Blocks without a backward pass precede everything that is trained.
Values statistics_in(const FuzzCase& c) {
  Values found;
  if (!has_running_statistics(c)) return found;
  if (c.whole_module) return {"in one block"};
  bool trained = false;
  for (const BlockToken& token : parse_blocks(c.blocks, "LRGNDWASB")) {
    trained =
        trained || (std::string("LNWB").find(token.kind) != std::string::npos && !token.frozen);
    if (token.kind != 'S' && token.kind != 'B') continue;
    found.emplace_back(trained ? "with backward" : "without backward");
    const bool again = c.parallel.gradient_checkpointing || !c.parallel.recomputed_blocks.empty();
    if (again) found.back() += ", recomputation";
  }
  return found;
}

std::string wire_of(const FuzzCase& c) {
  const PrecisionConfig& precision = c.parallel.precision;
  const auto gradient = precision.gradient.value_or(precision.parameter);
  const auto wire = precision.reduce.value_or(gradient);
  return wire == gradient ? "as gradients" : wire == at::kFloat ? "wider" : "narrower";
}

std::string shard_ranks_of(const FuzzCase& c) {
  const int ranks = c.parallel.shard_ranks;
  return ranks < 2 ? std::to_string(ranks) : ranks == c.mesh.sharding() ? "all" : "some";
}

std::string unit_of(const FuzzCase& c) {
  const int64_t numel = c.parallel.unit_numel;
  return numel == 0 ? "block" : numel < (1 << 30) ? "some blocks" : "all";
}

std::string steps_in(const std::string& listed) { return listed.empty() ? "none" : "some"; }

std::string axes_of(const FuzzCase& c) {
  int axes = 0;
  for (int extent : {c.mesh.pipeline, c.mesh.data, c.mesh.tensor, c.mesh.context, c.mesh.expert})
    axes += extent > 1 ? 1 : 0;
  return std::to_string(axes);
}

// Features under which dropout must be equal, although computed in other parts or again.
Values beside_dropout(const FuzzCase& c) {
  Values found;
  if (c.hidden_dropout == 0 && c.attention_dropout == 0) return found;
  if (c.mesh.pipeline > 1) found.emplace_back("stages");
  if (c.parallel.pipeline.shared_vocabulary) found.emplace_back("shared vocabulary");
  if (c.mesh.data > 1) found.emplace_back("data ranks");
  if (c.mesh.tensor > 1) found.emplace_back("tensor axis");
  if (c.parallel.sequence_parallel) found.emplace_back("sequence parallelism");
  if (c.parallel.gradient_checkpointing || !c.parallel.recomputed_blocks.empty()) {
    found.emplace_back("recomputation");
  }
  if (c.padded) found.emplace_back("padding");
  if (c.packed) found.emplace_back("packed rows");
  if (c.resume > 0) found.emplace_back("resuming");
  if (!c.evaluate.empty()) found.emplace_back("evaluation");
  if (c.fused && !c.padded) found.emplace_back("fused blocks");
  return found;
}

bool is_rotary(const FuzzCase& c) {
  return is_language_model(c) && c.model != "bloom" && c.model != "gpt2";
}

void add_model(std::vector<FuzzFeature>& all) {
  all.push_back(field("model", {"toy",
                                "modules",
                                "chain",
                                "bloom",
                                "glm4_moe",
                                "gpt2",
                                "gpt_oss",
                                "llama",
                                "mistral",
                                "mixtral",
                                "olmoe",
                                "qwen2",
                                "qwen2_moe",
                                "qwen3",
                                "qwen3_moe",
                                "program-gemma3",
                                "program-gpt_neox",
                                "program-gpt_oss",
                                "program-llama",
                                "program-olmoe",
                                "program-phi3",
                                "program-classifier"}));
  all.push_back(kinds("toy", "LQPDTUBCV"));
  all.push_back(kinds("modules", "LRGNDWASB"));
  all.push_back(kinds("chain", "MTX"));
  all.push_back(feature("inner blocks", {"0", "1", "2", "3-6", "7+"}, count_of_blocks));
  all.push_back(field("tie", {"none", "first", "last"}));
  all.push_back(
      {"frozen", {"nothing", "first block", "last block", "block", "part of a block"}, frozen_in});
  all.push_back({"running statistics",
                 {"without backward", "without backward, recomputation", "with backward",
                  "with backward, recomputation", "in one block"},
                 statistics_in});
  all.push_back(feature(
      "vocabulary", {"odd", "even"},
      [](const FuzzCase& c) { return c.vocabulary % 2 == 0 ? "even" : "odd"; },
      [](const FuzzCase& c) { return c.model != "modules" && c.model != "chain"; }));
  all.push_back(field("own_weights", {"0", "1"},
                      [](const FuzzCase& c) { return c.model == "modules" && c.mesh.data > 1; }));
  all.push_back(field("whole_module", {"0", "1"}, [](const FuzzCase& c) {
    return c.model == "modules" || c.model == "chain";
  }));
  all.push_back(field("heads", {"2", "4", "6"}, is_language_model));
  all.push_back(feature(
      "keys", {"one a query", "shared"},
      [](const FuzzCase& c) { return c.key_heads == c.heads ? "one a query" : "shared"; },
      is_rotary));
  all.push_back(feature(
      "head size", {"hidden / heads", "its own"},
      [](const FuzzCase& c) { return c.head_dim == 0 ? "hidden / heads" : "its own"; }, is_rotary));
  all.push_back(field("window", {"0", "1", "2", "3", "5"}, [](const FuzzCase& c) {
    return is_rotary(c) && c.model != "glm4_moe" && c.model != "llama" && c.model != "olmoe";
  }));
  all.push_back(field("hidden_dropout", {"0", "0.1", "0.5"},
                      [](const FuzzCase& c) { return c.model == "bloom" || c.model == "gpt2"; }));
  all.push_back(field("attention_dropout", {"0", "0.1", "0.5"}, is_language_model));
  all.push_back(
      {"dropout beside",
       {"stages", "shared vocabulary", "data ranks", "tensor axis", "sequence parallelism",
        "recomputation", "padding", "packed rows", "resuming", "evaluation", "fused blocks"},
       beside_dropout});
  all.push_back(field("lora", {"0", "1", "3"}, [](const FuzzCase& c) {
    return is_language_model(c) || c.model.starts_with("program-");
  }));
  all.push_back(field("lora_on", {"default", "all", "all+norm", "tensors", "down"},
                      [](const FuzzCase& c) { return c.lora > 0; }));
  all.push_back(field("balance_loss", {"0", "0.5"}, has_router_losses));
  all.push_back(field("z_loss", {"0", "0.1"}, has_router_losses));
  all.push_back(field("fused", {"0", "1"},
                      [](const FuzzCase& c) { return is_language_model(c) && !c.padded; }));
  all.push_back(field("padded", {"0", "1"}, is_language_model));
  all.push_back(field("packed", {"0", "1"}, is_language_model));
  all.push_back(field("supervised_only", {"0", "1"}, is_language_model));
  all.push_back(feature(
      "supervised positions of uneven batches", {"padded", "packed"},
      [](const FuzzCase& c) { return c.packed ? "packed" : "padded"; },
      [](const FuzzCase& c) { return c.supervised_only && c.ragged && (c.packed || c.padded); }));
}

void add_layout(std::vector<FuzzFeature>& all) {
  all.push_back(field("pipeline", range(1, 5)));
  all.push_back(field("data", {"1", "2", "3", "4", "5", "8"}));
  all.push_back(field("tensor", range(1, 4)));
  all.push_back(field("context", range(1, 4)));
  all.push_back(field("expert", {"1", "2", "3", "4", "5"}, [](const FuzzCase& c) {
    return c.mesh.tensor == 1 && c.mesh.context == 1 && c.mesh.data > 1 && has_divisible_experts(c);
  }));
  all.push_back(field("context_attention", {"auto", "heads", "keys"},
                      [](const FuzzCase& c) { return c.mesh.context > 1; }));
  all.push_back(feature("axes of several ranks", range(0, 3), axes_of));
  all.push_back(field("strategy", strategy_names()));
  all.push_back(field("dtype", {"fp32", "bf16", "fp16"}));
  all.push_back(field("fp8", {"off", "tensorwise", "rowwise"}, is_language_model));
  all.push_back(field("fp8_layers", {"all", "qkv", "up,down", "qkv,o,down"},
                      [](const FuzzCase& c) { return c.parallel.precision.fp8 != Fp8::kOff; }));
  all.push_back(field("fp8_all_gather", {"0", "1"}, [](const FuzzCase& c) {
    ParallelConfig gathers = c.parallel;
    gathers.fp8_all_gather = true;
    return sharding_rules(gathers, c.mesh).coded_layers.any();
  }));
  all.push_back(field("frozen_dtype", {"same", "fp8"}, [](const FuzzCase& c) {
    return c.lora > 0 && c.parallel.precision.fp8 != Fp8::kTensorwise;
  }));
  all.push_back(field("gradient_dtype", {"same", "fp32"}));
  all.push_back(field("reduce_dtype", {"same", "fp32", "bf16", "fp16"}));
  all.push_back(feature("wire", {"as gradients", "narrower", "wider"}, wire_of));
  const auto groups_units = [](const FuzzCase& c) {
    return has_setting(c.parallel.strategy, "unit_numel");
  };
  all.push_back(feature("fsdp_unit_numel", {"block", "some blocks", "all"}, unit_of, groups_units));
  all.push_back(
      feature("shard_ranks", {"0", "1", "some", "all"}, shard_ranks_of, [=](const FuzzCase& c) {
        return c.mesh.data > 1 && has_setting(c.parallel.strategy, "shard_ranks");
      }));
  all.push_back(field("sequence_parallel", {"0", "1"},
                      [](const FuzzCase& c) { return c.mesh.tensor > 1 && is_language_model(c); }));
}

// True where a layout field has an effect, beside being read.
bool acts(const std::string& name, const FuzzCase& c) {
  const OffloadStep step = c.parallel.offload.step;
  if (name == "bucket_bytes") {
    return c.mesh.data > 1 && !sharding_rules(c.parallel, c.mesh).shards_gradients;
  }
  if (name == "overlap") return c.mesh.data > 1;
  if (name == "reduce_at_boundary") return c.accumulation > 1;
  const bool again = c.parallel.gradient_checkpointing || !c.parallel.recomputed_blocks.empty();
  if (name == "save_norm_outputs") return is_language_model(c) && c.fused && !c.padded;
  if (name == "save_attention_outputs") {
    return again && is_language_model(c) && c.fused && !c.padded;
  }
  if (name == "recompute_experts") return has_divisible_experts(c) || c.model == "gpt_oss";
  if (name == "offload") return again || !c.parallel.offload.activations;
  if (name == "offload_threads") return step != OffloadStep::kDevice;
  if (name == "offload_device_bytes") return c.parallel.offload.what == Offload::kOptimizer;
  if (name == "chunk_numel")
    return offloads(c) && (step == OffloadStep::kDevice || step == OffloadStep::kBoth);
  return true;
}

void add_drawn_fields(std::vector<FuzzFeature>& all) {
  for (const LayoutField& of : layout_fields()) {
    if (of.more.apart) continue;
    Values values;
    for (const std::string& text : of.drawn()) {
      const std::string value = text == "false" ? "0" : text == "true" ? "1" : text;
      if (std::ranges::count(values, value) == 0) values.push_back(value);
    }
    all.push_back(field(of.name, values, [&of](const FuzzCase& c) {
      return of.why_idle(c.parallel, c.mesh).empty() && acts(of.name, c);
    }));
  }
}

void add_stages(std::vector<FuzzFeature>& all) {
  all.push_back(feature(
      "recomputed_blocks", {"none", "some"},
      [](const FuzzCase& c) { return c.parallel.recomputed_blocks.empty() ? "none" : "some"; },
      [](const FuzzCase& c) { return !c.parallel.gradient_checkpointing; }));
  all.push_back(field("pipeline_schedule", all_names<ScheduleKind>(), has_stages));
  all.push_back(field("pipeline_chunks", {"2", "3", "4"}, [](const FuzzCase& c) {
    return is(c.parallel.pipeline.schedule, ScheduleKind::kInterleaved);
  }));
  all.push_back(field("pipeline_vocabulary", {"stage", "shared"}, has_stages));
  all.push_back(feature(
      "block_costs", {"none", "given"},
      [](const FuzzCase& c) { return c.parallel.pipeline.block_costs.empty() ? "none" : "given"; },
      has_stages));
}

void add_work(std::vector<FuzzFeature>& all) {
  all.push_back(field("steps", {"2", "3", "4"}));
  all.push_back(field("accumulation", {"1", "2", "3", "4", "6"}));
  all.push_back(
      field("calls", {"1", "2", "3"}, [](const FuzzCase& c) { return c.accumulation >= c.calls; }));
  all.push_back(field("rows", {"1", "2", "3"}));
  all.push_back(field("length", {"2", "3", "5"}));
  all.push_back(field("ragged", {"0", "1"}));
  all.push_back(field("untargeted", {"none", "rows", "micro_batches", "ranks", "step"}));
  all.push_back(feature("skipped steps", {"none", "some"},
                        [](const FuzzCase& c) { return steps_in(c.skip); }));
  all.push_back(feature("evaluation between steps", {"none", "some"},
                        [](const FuzzCase& c) { return steps_in(c.evaluate); }));
  all.push_back(feature("resumed", {"no", "same layout", "other layout"}, [](const FuzzCase& c) {
    if (c.resume == 0) return "no";
    const bool same = to_line(resumed_case(c)) == to_line(without_resume(c));
    return same ? "same layout" : "other layout";
  }));
  all.push_back(field("loss_scale", {"0", "3", "1024", "65536", "1099511627776"}));
  all.push_back(field("max_norm", {"0", "0.1", "100"}));
  all.push_back(field("groups", {"0", "1"}));
  const std::vector<const char*> names = oracle_optimizers();
  Values optimizers(names.begin(), names.end());
  optimizers.erase(std::ranges::unique(optimizers).begin(), optimizers.end());
  all.push_back(field("optimizer", optimizers));
  all.push_back(field("moments", {"fp32", "bf16", "int8"}, has_moments));
  all.push_back(field("min_8bit_size", {"1", "200", "300"},
                      [](const FuzzCase& c) { return has_moments(c) && c.moments == "int8"; }));
  all.push_back(field("column_scale", {"1", "0.0001220703125"}, [](const FuzzCase& c) {
    return has_moments(c) && c.moments == "int8" && c.model == "toy";
  }));
  all.push_back(field("decay", {"matrices", "all"}));
  all.push_back(field("learning_rate", {"0.01", "0.001"}));
  all.push_back(field("weight_decay", {"0", "0.1"}));
  all.push_back(field("beta2", {"0.999", "0.9"}));
  all.push_back(field("epsilon", {"1e-08", "0.001"}));
}

}  // namespace

std::vector<FuzzFeature> fuzz_features() {
  std::vector<FuzzFeature> all;
  add_model(all);
  add_layout(all);
  add_drawn_fields(all);
  add_stages(all);
  add_work(all);
  // A refused case runs no further, so its other features do not count.
  for (FuzzFeature& feature : all) {
    feature.of = [of = feature.of](const FuzzCase& c) {
      return c.refuse == "none" ? of(c) : Values{};
    };
  }
  all.push_back(
      field("refuse", {"none", "target_count", "micro_batches", "batch", "weights", "layout"}));
  return all;
}

}  // namespace tessera::testing
