// SPDX-License-Identifier: MIT
#pragma once
// THE table of settings. Flags, their help and validation, --print_config, what is the same work,
// names of runs and rows, and docs/reference/flags.md follow from it.
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/settings/options.h"
#include "tessera/metrics/event.h"

namespace tessera::settings {

// What another value changes.
enum class Changes {
  kNumbers,  // losses and weights
  kCost,     // time, memory and traffic, and no number
  kOutput    // what is written where, and when a run ends
};

// Whose the name of a flag is.
enum class NameOf { kTessera, kTrainingArguments, kPeft };

// What --help groups.
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
    // The only values allowed; none: any. Of an enum they are its names.
    std::vector<std::string> choices = {};
    // Every number has a lower and an upper bound.
    double least = -kNoLimit, above = -kNoLimit, most = kNoLimit, below = kNoLimit;
    // In names of runs where the value is not the default: the tag, and of what is no switch the
    // value. tag_of: the whole text instead.
    const char* tag = nullptr;
    std::function<std::string(const TrainOptions&)> tag_of = nullptr;
    // Whether it stands in records of runs and rows; unless given, what costs does. record: the
    // value there, where it is not the option's.
    std::optional<bool> recorded = {};
    std::function<metrics::Value(const TrainOptions&)> record = nullptr;
    bool writes = false;                 // the path is written: no input of a run
    bool tuning = false;                 // the names of rows that have it in common leave it out
    std::vector<Program> programs = {};  // none: all but kOwn
    std::optional<bool> own = {};  // whether of kOwn; unless given, what is not of model or data
    // Title in reports of what sets the work of runs apart; "": facts of records say it, or a whole
    // run has it no more. Unless given, what changes numbers is work under its name.
    const char* work = nullptr;
    const char* brief = "";  // of the twenty on the first screen of --help: what it says there
    NameOf name_of = NameOf::kTessera;
  } more = {};
  Section section = Section::kModel;

  FieldRef read(const TrainOptions& options) const;  // not to be set
  bool is_of(Program program) const;
  bool is_default(const TrainOptions& options) const;
  std::string text(const TrainOptions& options) const;  // as a flag takes it
  std::string tag(const TrainOptions& options) const;   // "": none
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
