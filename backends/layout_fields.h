// SPDX-License-Identifier: MIT
#pragma once
// THE table of ParallelConfig. Flags, records, names of runs, what has no effect on a layout and
// what the layout fuzzer draws follow from it.
#include <array>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "lib/core/field.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/comm/device_mesh.h"

namespace tessera {

template <>
inline constexpr auto kNames<Offload> =
    std::to_array<Named<Offload>>({{"none", Offload::kNone},
                                   {"optimizer", Offload::kOptimizer},
                                   {"optimizer+params", Offload::kOptimizerAndParameters}});
template <>
inline constexpr auto kNames<OffloadStep> = std::to_array<Named<OffloadStep>>(
    {{"auto", OffloadStep::kAuto}, {"host", OffloadStep::kHost}, {"device", OffloadStep::kDevice}});
inline constexpr auto kVocabularies =  // of PipelineConfig::shared_vocabulary
    std::to_array<Named<bool>>({{"stage", false}, {"shared", true}});

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr double kMuch = 1099511627776.0;  // 2^40
constexpr double kLargestReal = 1e38;      // fp32 ends at 3.4e38

struct LayoutField {
  const char* name;  // of the flag, in records and in lines of the fuzzer
  FieldRef (*field)(ParallelConfig&);
  const char* help;  // null: there is no flag
  struct More {
    const char* member = nullptr;           // as messages call it: "pipeline.chunks"; null: `name`
    std::vector<std::string> choices = {};  // of a text: the only values allowed
    double least = -kNoLimit, most = kNoLimit;
    bool numbers = false;  // changes losses and weights; else time, memory and traffic only
    // In names of runs where the value is not the default: the tag, and of what is no switch the
    // value. tag_of: the whole text instead.
    const char* tag = nullptr;
    std::string (*tag_of)(const ParallelConfig&, const MeshExtents&) = nullptr;
    bool tuning = false;  // the names of rows that have it in common leave it out
    std::vector<std::string> strategies = {};  // that alone read it; none: all
    // Why nothing of this layout reads it, "" where something does. refused: it says how the model
    // is spread, so that the run would be another one.
    std::string (*idle)(const ParallelConfig&, const MeshExtents&) = nullptr;
    bool refused = false;
    bool blank = false;  // records say nothing (of a switch: false) where it is idle
    // What the fuzzer draws from, where the field is read; more often what is named twice. Unless
    // given, all values of a switch or a choice. apart: it is drawn by rules of its own.
    std::vector<std::string> draws = {};
    bool apart = false;
    const char* work = nullptr;    // see Setting
    const char* brief = "";        // on the first screen of --help; "": it is not there
    bool of_hugging_face = false;  // TrainingArguments have the name
  } more = {};

  bool is_of(const std::string& strategy) const;
  std::string member() const { return more.member != nullptr ? more.member : name; }
  FieldRef read(const ParallelConfig& config) const;  // not to be set
  std::string text(const ParallelConfig& config) const { return text_of(read(config)); }
  std::string why_idle(const ParallelConfig& config, const MeshExtents& mesh) const;
  std::vector<std::string> drawn() const;  // more.draws, or what stands for them
};

// In the order of --help.
std::span<const LayoutField> layout_fields();

}  // namespace tessera
