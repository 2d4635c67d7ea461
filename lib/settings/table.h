// SPDX-License-Identifier: MIT
#pragma once
// The table of all settings. Flags, their help and validation, --print_config, comparability of
// runs, names of runs and rows, and docs/reference/flags.md are derived from it.
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/settings/options.h"
#include "tessera/metrics/event.h"

namespace tessera::settings {

// Effect of changing the value.
enum class Changes {
  kNumbers,  // losses and weights
  kCost,     // time, memory and traffic, but no numbers
  kOutput    // outputs, and when a run ends
};

// Origin of a flag's name.
enum class NameOf { kTessera, kTrainingArguments, kPeft };

// Sections of --help.
enum class Section { kModel, kData, kTraining, kAdapters, kStrategy, kRun };
const char* title_of(Section section);

// of<&DataOptions::packing>
template <auto kMember>
constexpr auto of = field_at<TrainOptions, group_of(kMember), kMember>;

struct Setting {
  const char* name;
  std::function<FieldRef(TrainOptions&)> field;
  Changes changes;
  std::string help;
  struct More {
    // The allowed values; empty: any. For an enum, its names.
    std::vector<std::string> choices = {};
    // Lower and upper bounds; every number has both.
    double least = -kNoLimit, above = -kNoLimit, most = kNoLimit, below = kNoLimit;
    // Tag in run names for values other than the default, followed by the value unless it is a
    // switch. tag_of: replaces the whole text.
    const char* tag = nullptr;
    std::function<std::string(const TrainOptions&)> tag_of = nullptr;
    // Whether records of runs and rows contain it; by default if it changes cost. record: the
    // recorded value if not the option's.
    std::optional<bool> recorded = {};
    std::function<metrics::Value(const TrainOptions&)> record = nullptr;
    bool writes = false;                 // the path is an output
    bool tuning = false;                 // left out of row names when all rows share it
    std::vector<Program> programs = {};  // empty: all but kOwn
    std::optional<bool> own = {};  // whether kOwn has it; by default if not a model or data setting
    const char* brief = "";        // text on the first screen of --help, which has twenty
    NameOf name_of = NameOf::kTessera;
  } more = {};
  Section section = Section::kModel;

  FieldRef read(const TrainOptions& options) const;  // read-only
  bool is_of(Program program) const;
  bool is_default(const TrainOptions& options) const;
  std::string text(const TrainOptions& options) const;  // as on a command line
  std::string tag(const TrainOptions& options) const;   // "": no tag
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
