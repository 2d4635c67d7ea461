// SPDX-License-Identifier: MIT
#include "backends/layout_fields.h"

#include <algorithm>
#include <tuple>

#include "backends/check_config.h"
#include "backends/pipeline/schedule_kinds.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

using P = ParallelConfig;
using Precision = PrecisionConfig;
using Stages = PipelineConfig;
using enum Changes;
using enum StrategyKind;

template <auto... kPath>
constexpr auto of = field_at<P, kPath...>;

FieldRef vocabulary(P& p) { return choice_of<kVocabularies>(p.pipeline.shared_vocabulary); }

constexpr double kCount = 65536;

std::string gradient_tag(const P& p, const MeshExtents&) {
  const at::ScalarType own = p.precision.gradient_dtype();
  return own == p.precision.parameter ? "" : concat("g", name_of(own));
}
std::string reduce_tag(const P& p, const MeshExtents&) {
  const at::ScalarType own = p.precision.reduce_dtype();
  return own == p.precision.gradient_dtype() ? "" : concat("r", name_of(own));
}
std::string schedule_tag(const P& p, const MeshExtents& mesh) {
  if (mesh.pipeline <= 1) return "";
  const bool in_chunks = is(p.pipeline.schedule, ScheduleKind::kInterleaved);
  return in_chunks ? concat("int", p.pipeline.chunks) : p.pipeline.schedule;
}
std::string vocabulary_tag(const P& p, const MeshExtents& mesh) {
  return mesh.pipeline > 1 && p.pipeline.shared_vocabulary ? "shared" : "";
}
std::string offload_tag(const P& p, const MeshExtents&) {
  const bool activations = p.offload.activations;
  switch (p.offload.what) {
    case Offload::kNone:
      return activations ? "offact" : "";
    case Offload::kOptimizer:
      return activations ? "offoact" : "off";
    case Offload::kOptimizerAndParameters:
      return activations ? "offpact" : "offp";
  }
  return "";
}
bool offloads(const P& p) { return p.offload.what != Offload::kNone || p.offload.activations; }
std::string pin_tag(const P& p, const MeshExtents&) {
  return offloads(p) && p.offload.pin_memory ? "pin" : "";
}

std::string bucket_idle(const P& p, const MeshExtents& mesh) {
  const bool converts = p.precision.reduce_dtype() != p.precision.gradient_dtype();
  if (converts || !sharding_rules(p, mesh).shards_gradients) return "";
  return concat("strategy ", p.strategy,
                " reduces block by block where gradients travel as they are");
}
std::string messages_idle(const P&, const MeshExtents& mesh) {
  return mesh.sharding() > 1 ? "" : "it needs a data axis of more than one rank";
}
std::string checkpointing_idle(const P& p, const MeshExtents&) {
  return p.gradient_checkpointing ? "gradient_checkpointing runs every block again" : "";
}
std::string offload_idle(const P& p, const MeshExtents&) {
  return p.offload.what == Offload::kNone ? "no state is offloaded" : "";
}
std::string pin_idle(const P& p, const MeshExtents&) {
  return offloads(p) ? "" : "nothing is offloaded";
}
std::string attention_outputs_idle(const P& p, const MeshExtents&) {
  return p.offload.activations ? "offloaded activations include attention's outputs" : "";
}
std::string device_bytes_idle(const P& p, const MeshExtents&) {
  return p.offload.what == Offload::kOptimizer ? ""
         : p.offload.what == Offload::kNone
             ? "no state is offloaded"
             : "where parameters are offloaded, all state of theirs is";
}
std::string fp8_layers_idle(const P& p, const MeshExtents&) {
  if (p.precision.fp8 == Fp8::kAuto) return "fp8 auto chooses the layers";
  return p.precision.fp8 == Fp8::kOff ? "no product is in 8 bits" : "";
}
std::string fp8_all_gather_idle(const P& p, const MeshExtents& mesh) {
  if (p.precision.fp8 == Fp8::kRowwise) return "codes with a scale a row are not gathered";
  if (p.precision.fp8 == Fp8::kOff) return "no product is in 8 bits";
  if (p.offload.what != Offload::kNone) return "weights of offloaded state are gathered in --dtype";
  return sharding_rules(p, mesh).shards > 1 ? "" : "nothing is gathered";
}
std::string pipeline_idle(const P&, const MeshExtents& mesh) {
  return mesh.pipeline > 1 ? "" : "it needs a pipeline axis of more than one rank";
}
std::string tensor_idle(const P&, const MeshExtents& mesh) {
  return mesh.tensor > 1 ? "" : "it needs a tensor axis of more than one rank";
}

std::string context_idle(const P&, const MeshExtents& mesh) {
  return mesh.context > 1 ? "" : "it needs a context axis of more than one rank";
}

using Parts = std::array<std::vector<LayoutField>, kLayoutParts>;

// In the order of LayoutPart.
Parts make_parts() {
  // clang-format off
  return {{{
      {"strategy", of<&P::strategy>, kCost,
       "how the model is spread over the ranks; left out: single on one, ddp on several",
       {.choices = strategy_names(), .brief = "how the model is spread"}, {.apart = true}},
      {"dtype", of<&P::precision, &Precision::parameter>, kNumbers, "of parameters and computation",
       {.work = "", .brief = "fp32, bf16 or fp16"}, {.apart = true}},
      {"fp8", of<&P::precision, &Precision::fp8>, kNumbers,
       "linear layers of decoder blocks multiply in 8 bits: one scale a matrix, or a row; off: in "
       "--dtype; auto: one scale a matrix in the layers that it makes faster, as measured",
       {.tag = "fp8-", .work = "8-bit products"}, {.apart = true}},
      {"fp8_layers", of<&P::precision, &Precision::fp8_layers>, kNumbers,
       "fp8: all, or some of qkv,o,up,down; others multiply in --dtype",
       {.tag = "fp8l-", .work = "8-bit products"}, {.idle = fp8_layers_idle, .refused = true,
        .apart = true}},
      {"frozen_dtype", of<&P::precision, &Precision::frozen>, kNumbers,
       "frozen weights of decoder blocks' linear layers, beside adapters: same: stored in --dtype; "
       "fp8: in 8 bits with one scale a matrix",
       {.tag = "frozen-", .work = "8-bit frozen weights"}, {.apart = true}}}, {
      {"gradient_dtype", of<&P::precision, &Precision::gradient>, kNumbers,
       "what backward accumulates into; --dtype unless given",
       {}, {.tag_of = gradient_tag, .apart = true}},
      {"reduce_dtype", of<&P::precision, &Precision::reduce>, kNumbers,
       "what collectives carry; --gradient_dtype unless given",
       {}, {.tag_of = reduce_tag, .apart = true}}}, {
      {"bucket_bytes", of<&P::bucket_bytes>, kCost,
       "gradients are reduced together in buckets of this size",
       {.least = 1, .most = kMuch, .tag = "bkt", .tuning = true}, {.idle = bucket_idle,
        .draws = {"1", "300", "4000", "26214400"}}},
      {"coalesce_bytes", of<&P::coalesce_bytes>, kCost,
       "neighbouring blocks are gathered and reduced together up to these bytes of parameters; "
       "0: as the number of ranks asks for, 1: each block alone",
       {.least = 0, .most = kMuch, .tag = "msg", .tuning = true},
       {.strategies = {kDdp, kZero1, kZero2, kZero3, kFsdp}, .idle = messages_idle,
        .draws = {"0", "1", "600", "5000", "1000000"}}},
      {"overlap", of<&P::overlap>, kCost, "false: wait for every collective where it is launched",
       {.tag = "wait", .tuning = true}},
      {"reduce_at_boundary", of<&P::reduce_at_boundary>, kCost,
       "zero2, fsdp: reduce once a step, not every micro-batch",
       {.tag = "boundary"}, {.strategies = {kZero2, kFsdp}}},
      {"persistence_threshold", of<&P::persistence_threshold>, kCost,
       "zero3: parameters with fewer elements stay in full",
       {.least = 0, .most = kMuch, .tag = "pt", .tuning = true}, {.strategies = {kZero3},
        .draws = {"0", "20", "100", "100000"}}},
      {"prefetch_blocks", of<&P::prefetch_blocks>, kCost, "zero3, fsdp: blocks gathered ahead",
       {.least = 0, .most = kCount, .tag = "pre", .tuning = true}, {.strategies = {kZero3, kFsdp},
        .draws = {"0", "1", "1", "2", "5"}}},
      {"fp8_all_gather", of<&P::fp8_all_gather>, kCost,
       "zero3, fsdp: with fp8 tensorwise, training gathers weights of layers in 8 bits as their "
       "codes, half of the bytes; false: in --dtype",
       {.tag = "ag16"}, {.strategies = {kZero3, kFsdp}, .idle = fp8_all_gather_idle,
        .blank = true, .apart = true}},
      {"shard_ranks", of<&P::shard_ranks>, kCost,
       "fsdp: ranks that share one copy of the model, which the others replicate; 0: all",
       {.least = 0, .most = kCount, .tag = "hs"}, {.strategies = {kFsdp}, .refused = true,
        .apart = true}},
      {"reshard_after_forward", of<&P::reshard_after_forward>, kCost,
       "fsdp: false keeps parameters whole until the step",
       {.tag = "keep"}, {.strategies = {kFsdp}, .refused = true}},
      {"fsdp_unit_numel", of<&P::unit_numel>, kCost,
       "fsdp: small blocks are wrapped together up to this many elements",
       {.least = 0, .most = kMuch, .tag = "unit"}, {.member = "unit_numel", .strategies = {kFsdp},
        .refused = true, .apart = true}}}, {
      {"sequence_parallel", of<&P::sequence_parallel>, kCost,
       "tensor parallel: norms and residuals hold a part of the sequence",
       {.tag = "sp"}, {.idle = tensor_idle, .refused = true, .apart = true}}}, {
      {"context_attention", of<&P::context_attention>, kCost,
       "context parallel: exchange heads, or gather keys and values; auto: heads where the key "
       "heads divide, but keys where a GPU's kernels take them and they send less",
       {.tag = "ca-"}, {.idle = context_idle, .refused = true, .apart = true}}}, {
      {"pipeline_schedule", of<&P::pipeline, &Stages::schedule>, kCost,
       "order of the micro-batches; zbh1 splits backward to shorten the bubble",
       {.choices = all_names<ScheduleKind>()}, {.member = "pipeline.schedule",
        .tag_of = schedule_tag, .idle = pipeline_idle, .blank = true, .apart = true}},
      {"pipeline_chunks", of<&P::pipeline, &Stages::chunks>, kCost,
       "interleaved: parts of the model on each rank",
       {.least = 1, .most = kCount}, {.member = "pipeline.chunks", .idle = pipeline_idle,
        .refused = true, .apart = true}},
      {"pipeline_vocabulary", vocabulary, kCost,
       "embedding and head: on the first and the last stage, or cut over all (gpipe, 1f1b)",
       {}, {.member = "pipeline.shared_vocabulary", .tag_of = vocabulary_tag, .idle = pipeline_idle,
        .refused = true, .blank = true, .apart = true}},
      {"pipeline_balance", of<&P::pipeline, &Stages::balance>, kCost, "",
       {.choices = model_balances()}, {.member = "pipeline.balance", .idle = pipeline_idle}},
      {"block_costs", of<&P::pipeline, &Stages::block_costs>, kCost, "",
       {}, {.apart = true}}}, {
      {"gradient_checkpointing", of<&P::gradient_checkpointing>, kCost,
       "keep only the inputs of blocks, and run each again in backward",
       {.tag = "gc", .brief = "recompute blocks in backward",
        .name_of = NameOf::kTrainingArguments}, {.draws = {"false", "false", "true"}}},
      {"recomputed_blocks", of<&P::recomputed_blocks>, kCost, "",
       {}, {.idle = checkpointing_idle, .apart = true}}}, {
      {"save_norm_outputs", of<&P::save_norm_outputs>, kCost,
       "keep outputs of norms and activation functions for backward; otherwise backward recomputes "
       "them; no effect with --gradient_checkpointing",
       {.tag = "act"}, {.idle = checkpointing_idle}},
      {"save_attention_outputs", of<&P::save_attention_outputs>, kCost,
       "recomputed layers keep attention's output and log-sum-exp, so that backward does not form "
       "attention twice (16 bits on GPUs)",
       {.tag = "attn"}, {.idle = attention_outputs_idle}},
      {"recompute_experts", of<&P::recompute_experts>, kCost,
       "layers keep no activations of their experts: backward forms them again, for two thirds of "
       "their forward",
       {.tag = "moe"}, {.idle = checkpointing_idle}}}, {
      {"offload", offload_field, kCost,
       "what host memory holds: state; activations: what recomputed layers keep until backward, "
       "with attention's outputs",
       {.brief = "what host memory holds"}, {.tag_of = offload_tag,
        .draws = {"none", "none", "none", "optimizer", "optimizer", "optimizer+params",
                  "optimizer+params", "activations", "activations", "optimizer+activations",
                  "optimizer+params+activations"}}},
      {"offload_step", of<&P::offload, &OffloadConfig::step>, kCost,
       "offload: where the optimizer's update runs; both: on the host and through the GPU at once; "
       "auto: the fastest, measured at start",
       {.tag = "on-", .tuning = true}, {.member = "offload.step", .idle = offload_idle,
        .blank = true, .draws = {"auto", "host", "device", "device", "both", "both"}}}}, {
      {"pin_memory", of<&P::offload, &OffloadConfig::pin_memory>, kCost,
       "offload: page-locked host memory",
       {}, {.member = "offload.pin_memory", .tag_of = pin_tag, .idle = pin_idle,
        .blank = true}},
      {"offload_threads", of<&P::offload, &OffloadConfig::threads>, kCost,
       "offload: of the optimizer step on the host; 0: this rank's share of the cores",
       {.least = 0, .most = kCount, .tag = "threads", .tuning = true}, {.member = "offload.threads",
        .idle = offload_idle, .draws = {"0", "1", "2"}}},
      {"offload_device_bytes", of<&P::offload, &OffloadConfig::device_bytes>, kCost, "",
       {.least = 0, .most = kMuch}, {.member = "offload.device_bytes", .idle = device_bytes_idle,
        .draws = {"0", "800", "20000"}}},
      {"chunk_numel", of<&P::offload, &OffloadConfig::chunk_numel>, kCost, "",
       {}, {.member = "offload.chunk_numel", .draws = {"7", "64", "1000", "16777216"}}}}}};
  // clang-format on
}

struct Table {
  std::vector<LayoutField> fields;
  std::vector<std::pair<size_t, size_t>> parts;  // first field and count
};

const Table& table() {
  static const Table all = [] {
    Table made;
    for (const std::vector<LayoutField>& part : make_parts()) {
      made.parts.emplace_back(made.fields.size(), part.size());
      made.fields.insert(made.fields.end(), part.begin(), part.end());
    }
    return made;
  }();
  return all;
}

}  // namespace

FieldRef offload_field(ParallelConfig& config) {
  return Choice{&config.offload, kOffloads.size(), [](size_t i) { return kOffloads[i].first; },
                [](const void* at) {
                  const auto& given = *static_cast<const OffloadConfig*>(at);
                  const std::pair wanted{given.what, given.activations};
                  size_t i = 0;
                  while (i < kOffloads.size() && kOffloads[i].second != wanted) ++i;
                  return i;
                },
                [](void* at, size_t i) {
                  auto& given = *static_cast<OffloadConfig*>(at);
                  std::tie(given.what, given.activations) = kOffloads[i].second;
                }};
}

std::string offload_name(ParallelConfig config) { return text_of(offload_field(config)); }

bool LayoutField::is_of(const std::string& strategy) const {
  const auto same = [&](StrategyKind kind) { return is(strategy, kind); };
  return more.strategies.empty() || std::ranges::any_of(more.strategies, same);
}

std::string LayoutField::why_idle(const ParallelConfig& config, const MeshExtents& mesh) const {
  if (!is_of(config.strategy)) {
    std::string names;  // "zero2 and fsdp"
    for (const StrategyKind kind : more.strategies) {
      names += concat(names.empty() ? "" : " and ", name_of(kind));
    }
    return concat("it belongs to ", names, "; strategy ", config.strategy, " has no such choice");
  }
  return more.idle == nullptr ? "" : more.idle(config, mesh);
}

std::vector<std::string> LayoutField::drawn() const {
  if (!more.draws.empty()) return more.draws;
  if (!facts.choices.empty()) return facts.choices;
  ParallelConfig config;
  const FieldRef of_config = field(config);
  return std::holds_alternative<bool*>(of_config) ? std::vector<std::string>{"false", "true"}
                                                  : names_of(of_config);
}

std::span<const LayoutField> layout_fields() { return table().fields; }

std::span<const LayoutField> layout_fields(LayoutPart part) {
  const auto [begin, count] = table().parts.at(static_cast<size_t>(part));
  return layout_fields().subspan(begin, count);
}

}  // namespace tessera
