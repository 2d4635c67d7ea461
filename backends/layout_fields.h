// SPDX-License-Identifier: MIT
#pragma once
// Table of ParallelConfig's fields, the source of flags, records, names of runs, idle settings and
// the layout fuzzer's draws.
#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/strategy_kinds.h"
#include "lib/core/field_row.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/comm/device_mesh.h"

namespace tessera {

template <>
inline constexpr auto kNames<OffloadStep> =
    std::to_array<Named<OffloadStep>>({{"auto", OffloadStep::kAuto},
                                       {"host", OffloadStep::kHost},
                                       {"device", OffloadStep::kDevice},
                                       {"both", OffloadStep::kBoth}});
template <>
inline constexpr auto kNames<ContextAttention> =
    std::to_array<Named<ContextAttention>>({{"auto", ContextAttention::kAuto},
                                            {"heads", ContextAttention::kHeads},
                                            {"keys", ContextAttention::kKeys}});
template <>
inline constexpr auto kNames<Fp8> = std::to_array<Named<Fp8>>({{"off", Fp8::kOff},
                                                               {"tensorwise", Fp8::kTensorwise},
                                                               {"rowwise", Fp8::kRowwise},
                                                               {"auto", Fp8::kAuto}});
template <>
inline constexpr auto kNames<FrozenDtype> =
    std::to_array<Named<FrozenDtype>>({{"same", FrozenDtype::kSame}, {"fp8", FrozenDtype::kFp8}});
// Values of --offload: states, and whether activations join them.
inline constexpr auto kOffloads = std::to_array<Named<std::pair<Offload, bool>>>(
    {{"none", {Offload::kNone, false}},
     {"optimizer", {Offload::kOptimizer, false}},
     {"optimizer+params", {Offload::kOptimizerAndParameters, false}},
     {"activations", {Offload::kNone, true}},
     {"optimizer+activations", {Offload::kOptimizer, true}},
     {"optimizer+params+activations", {Offload::kOptimizerAndParameters, true}}});
FieldRef offload_field(ParallelConfig& config);
std::string offload_name(ParallelConfig config);  // value of --offload
inline constexpr auto kVocabularies =             // values of PipelineConfig::shared_vocabulary
    std::to_array<Named<bool>>({{"stage", false}, {"shared", true}});

// Facts of a field that only ParallelConfig's table has.
struct LayoutMore {
  const char* member = nullptr;  // as messages call it: "pipeline.chunks"; null: the row's name
  // In names of runs: the whole text, instead of FieldFacts::tag.
  std::string (*tag_of)(const ParallelConfig&, const MeshExtents&) = nullptr;
  std::vector<StrategyKind> strategies = {};  // the only ones that read it; none: all
  // Why nothing of this layout reads it, "" where something does. refused: it says how the model
  // is spread, so that the run would be another one.
  std::string (*idle)(const ParallelConfig&, const MeshExtents&) = nullptr;
  bool refused = false;
  bool blank = false;  // records say nothing (of a switch: false) where it is idle
  // Values that the fuzzer draws where the field is read; repeated ones are drawn more often.
  // Default: all values of a switch or a choice. apart: drawn by rules of its own.
  std::vector<std::string> draws = {};
  bool apart = false;
};

// The name is also that of the fuzzer's lines. help: "" where there is no flag.
struct LayoutField : FieldRow<ParallelConfig, LayoutMore> {
  bool is_of(const std::string& strategy) const;
  std::string member() const { return more.member != nullptr ? more.member : name; }
  std::string why_idle(const ParallelConfig& config, const MeshExtents& mesh) const;
  std::vector<std::string> drawn() const;  // more.draws or its default
};

// Parts of the table. Settings that a ParallelConfig lacks follow some of them in --help.
enum class LayoutPart {
  kStrategy,
  kReduction,
  kSharding,
  kTensor,
  kContext,
  kPipeline,
  kCheckpointing,
  kActivations,
  kOffload,
  kHost
};
constexpr size_t kLayoutParts = 10;

// Fields in the order of --help.
std::span<const LayoutField> layout_fields();
std::span<const LayoutField> layout_fields(LayoutPart part);

}  // namespace tessera
