// SPDX-License-Identifier: MIT
#pragma once
// THE table of settings. Flags, their help and validation, --print_config, what is the same work,
// names of runs and rows, and docs/reference/flags.md follow from it.
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/core/field_row.h"
#include "lib/settings/options.h"
#include "tessera/metrics/event.h"

namespace tessera::settings {

using tessera::Changes;
using tessera::NameOf;

// What --help groups.
enum class Section { kModel, kData, kTraining, kAdapters, kStrategy, kRun };
const char* title_of(Section section);

// of<&DataOptions::packing>
template <auto kMember>
constexpr auto of = field_at<TrainOptions, group_of(kMember), kMember>;

// What the table of settings alone says of one.
struct SettingMore {
  // In names of runs: the whole text, instead of FieldFacts::tag.
  std::function<std::string(const TrainOptions&)> tag_of = nullptr;
  // Whether it stands in records of runs and rows; unless given, what costs does. record: the
  // value there, where it is not the option's.
  std::optional<bool> recorded = {};
  std::function<metrics::Value(const TrainOptions&)> record = nullptr;
  bool writes = false;                 // the path is written: no input of a run
  std::vector<Program> programs = {};  // none: all but kOwn
  std::optional<bool> own = {};  // whether of kOwn; unless given, what is not of model or data
};

struct Setting : FieldRow<TrainOptions, SettingMore> {
  Section section = Section::kModel;

  bool is_of(Program program) const;
  bool is_default(const TrainOptions& options) const;
  std::string tag(const TrainOptions& options) const;  // "": none
  bool is_number() const;
  // Throws Error(kInvalidArgument) for a number out of its range.
  void check_range(const TrainOptions& options) const;
  // "at least 1 and at most 2^40", "above 0 and below 1"; "": it is no number.
  std::string range_text() const;
};

metrics::Value value_of(const FieldRef& field);

// In the order of --help.
const std::vector<Setting>& table();
// The first of this name; null when there is none. Programs may have another one.
const Setting* find(const std::string& name);
void check_ranges(const TrainOptions& options);

// E.g. {"ga2", "tp2", "gc"}: all tags, in the order of the sections Training,
// Adapters, Strategy, Data, Run.
std::vector<std::string> tags(const TrainOptions& options);
// The same of how the model is spread alone; of what is for tuning, that which `named` chooses.
std::vector<std::string> layout_tags(
    const TrainOptions& options,
    const std::function<bool(const Setting&)>& named = [](const Setting&) { return true; });
bool names_layout(const Setting& setting);

// "zs2_bf16_gpus4_bs8_sl512_gc": a run's name where it was given none. Runs that differ in what
// costs differ in it.
std::string run_name(const TrainOptions& options, int64_t world_size, bool on_gpus,
                     Program program = Program::kText);

// What the records of a run of this program say of its settings, by their names.
metrics::Fields record(const TrainOptions& options, Program program);
std::vector<std::string> recorded_names();

// What --help NAME adds to a flag's text: range, what another value changes, where the name is
// from.
std::vector<std::string> facts(const Setting& setting);

// The table as Markdown, for docs/reference/flags.md.
std::string to_markdown();

namespace rows {  // of the sections
std::vector<Setting> model();
std::vector<Setting> data();
std::vector<Setting> training();
std::vector<Setting> adapters();
std::vector<Setting> strategy();
std::vector<Setting> run();
}  // namespace rows

}  // namespace tessera::settings
