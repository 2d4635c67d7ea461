// SPDX-License-Identifier: MIT
#pragma once
// The table of all settings. Flags, their help and validation, --print_config, comparability of
// runs, names of runs and rows, and docs/reference/flags.md are derived from it.
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

// Sections of --help.
enum class Section { kModel, kData, kTraining, kAdapters, kStrategy, kRun };
const char* title_of(Section section);

// of<&DataOptions::packing>
template <auto kMember>
constexpr auto of = field_at<TrainOptions, group_of(kMember), kMember>;

// Facts of a setting that only this table has.
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
  // Throws Error(kInvalidArgument) for a number out of range.
  void check_range(const TrainOptions& options) const;
  // "at least 1 and at most 2^40", "above 0 and below 1"; "": not a number.
  std::string range_text() const;
};

metrics::Value value_of(const FieldRef& field);

// In help order.
const std::vector<Setting>& table();
// The first setting of this name; null for none. Programs may have another one.
const Setting* find(const std::string& name);
void check_ranges(const TrainOptions& options);

// All tags, such as {"ga2", "tp2", "gc"}, in the order of the sections Training, Adapters,
// Strategy, Data, Run.
std::vector<std::string> tags(const TrainOptions& options);
// Tags of the layout only; tuning settings only if `named` chooses them.
std::vector<std::string> layout_tags(
    const TrainOptions& options,
    const std::function<bool(const Setting&)>& named = [](const Setting&) { return true; });
bool names_layout(const Setting& setting);

// Default name of a run, "zs2_bf16_gpus4_bs8_sl512_gc". Runs with different costs have different
// names.
std::string run_name(const TrainOptions& options, int64_t world_size, bool on_gpus,
                     Program program = Program::kText);

// Settings in the records of this program's runs, by name.
metrics::Fields record(const TrainOptions& options, Program program);
std::vector<std::string> recorded_names();

// Lines that --help NAME adds: range, effect of another value, origin of the name.
std::vector<std::string> facts(const Setting& setting);

// The table in Markdown, for docs/reference/flags.md.
std::string to_markdown();

namespace rows {  // by section
std::vector<Setting> model();
std::vector<Setting> data();
std::vector<Setting> training();
std::vector<Setting> adapters();
std::vector<Setting> strategy();
std::vector<Setting> run();
}  // namespace rows

}  // namespace tessera::settings
