// SPDX-License-Identifier: MIT
#pragma once
// Table of ParallelConfig's fields, the source of flags, records, names of runs, idle settings and
// the layout fuzzer's draws.
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
inline constexpr auto kVocabularies =  // values of PipelineConfig::shared_vocabulary
    std::to_array<Named<bool>>({{"stage", false}, {"shared", true}});

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr double kMuch = 1099511627776.0;  // 2^40
constexpr double kLargestReal = 1e38;      // fp32 ends at 3.4e38

struct LayoutField {
  const char* name;  // name of the flag, in records and in the fuzzer's lines
  FieldRef (*field)(ParallelConfig&);
  const char* help;  // null: no flag
  struct More {
    const char* member = nullptr;           // name in messages: "pipeline.chunks"; null: `name`
    std::vector<std::string> choices = {};  // of a text: the only legal values
    double least = -kNoLimit, most = kNoLimit;
    // whether it changes losses and weights; else time, memory and traffic only
    bool numbers = false;
    // Tag in names of runs with a non-default value, followed by the value except for switches.
    // tag_of: the whole text instead.
    const char* tag = nullptr;
    std::string (*tag_of)(const ParallelConfig&, const MeshExtents&) = nullptr;
    bool tuning = false;  // left out of row names if all rows have it in common
    std::vector<std::string> strategies = {};  // the only strategies that read it; empty: all
    // Reason why nothing in this layout reads it, "" if something does. refused: an error, because
    // it describes a different run.
    std::string (*idle)(const ParallelConfig&, const MeshExtents&) = nullptr;
    bool refused = false;
    bool blank = false;  // records omit it (a switch: false) if idle
    // Values that the fuzzer draws if the field is read; duplicates are drawn more often. Default:
    // all values of a switch or a choice. apart: drawn by special rules.
    std::vector<std::string> draws = {};
    bool apart = false;
    const char* brief = "";        // on the first screen of --help; "": not there
    bool of_hugging_face = false;  // a name in TrainingArguments
  } more = {};

  bool is_of(const std::string& strategy) const;
  std::string member() const { return more.member != nullptr ? more.member : name; }
  FieldRef read(const ParallelConfig& config) const;  // read-only
  std::string text(const ParallelConfig& config) const { return text_of(read(config)); }
  std::string why_idle(const ParallelConfig& config, const MeshExtents& mesh) const;
  std::vector<std::string> drawn() const;  // more.draws or its default
};

// Fields in the order of --help.
std::span<const LayoutField> layout_fields();

}  // namespace tessera
