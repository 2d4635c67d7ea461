#pragma once
// THE table of settings. Flags, their help and validation, --print_config, what is the same work,
// names of runs and rows, and docs/flags.md follow from it.
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <variant>
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

// What --help groups.
enum class Section { kModel, kData, kTraining, kStrategy, kRun };
const char* title_of(Section section);

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr double kMuch = 1099511627776.0;  // 2^40

struct Setting {
  using Member =
      std::variant<bool TrainOptions::*, int64_t TrainOptions::*, uint64_t TrainOptions::*,
                   double TrainOptions::*, std::string TrainOptions::*>;
  const char* name;
  Member member;
  Changes changes;
  std::string help;
  struct More {
    std::vector<std::string> choices = {};  // the only values allowed; none: any
    double least = -kNoLimit, most = kNoLimit, below = kNoLimit;
    // In names of runs where the value is not the default: the tag, and of what is no switch the
    // value. tag_of: the whole text instead.
    const char* tag = nullptr;
    std::string (*tag_of)(const TrainOptions&) = nullptr;
    // Whether it stands in records of runs and rows; unless given, what costs does. record: the
    // value there, where it is not the option's.
    std::optional<bool> recorded = {};
    metrics::Value (*record)(const TrainOptions&) = nullptr;
    bool tuning = false;                 // the names of rows that have it in common leave it out
    std::vector<Program> programs = {};  // none: all but kOwn
    std::optional<bool> own = {};  // whether of kOwn; unless given, what is not of model or data
  } more = {};
  Section section = Section::kModel;

  bool is_of(Program program) const;
  bool is_default(const TrainOptions& options) const;
  std::string text(const TrainOptions& options) const;  // as a flag takes it
  std::string tag(const TrainOptions& options) const;   // "": none
  // Throws Error(kInvalidArgument) for a number out of its range.
  void check_range(const TrainOptions& options) const;
};

// In the order of --help.
const std::vector<Setting>& table();
// The first of this name; null when there is none. Programs may have another one.
const Setting* find(const std::string& name);
void check_ranges(const TrainOptions& options);

// E.g. {"ga2", "tp2", "gc"}: all tags, in the order of the sections Training, Strategy, Data, Run.
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

// The table as Markdown, for docs/flags.md.
std::string to_markdown();

namespace rows {  // of the sections
std::vector<Setting> model();
std::vector<Setting> data();
std::vector<Setting> training();
std::vector<Setting> strategy();
std::vector<Setting> run();
}  // namespace rows

}  // namespace tessera::settings
