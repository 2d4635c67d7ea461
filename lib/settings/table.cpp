// SPDX-License-Identifier: MIT
#include "lib/settings/table.h"

#include <algorithm>
#include <cmath>

#include "backends/strategy_kinds.h"
#include "lib/core/joined.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::settings {
namespace {

const TrainOptions& defaults() {
  static const TrainOptions options;
  return options;
}

std::vector<Setting> all_rows() {
  std::vector<Setting> all;
  const auto add = [&](Section section, std::vector<Setting> rows) {
    for (Setting& row : rows) {
      row.section = section;
      if (row.facts.choices.empty()) row.facts.choices = names_of(row.read(defaults()));
      all.push_back(std::move(row));
    }
  };
  add(Section::kModel, rows::model());
  add(Section::kData, rows::data());
  add(Section::kTraining, rows::training());
  add(Section::kAdapters, rows::adapters());
  add(Section::kStrategy, rows::strategy());
  add(Section::kRun, rows::run());
  return all;
}

template <typename Keep>
std::vector<std::string> tags_of(const TrainOptions& options, const Keep& keep) {
  std::vector<std::string> tags;
  for (const Section section : {Section::kTraining, Section::kAdapters, Section::kStrategy,
                                Section::kData, Section::kRun}) {
    for (const Setting& setting : table()) {
      if (setting.section != section || !keep(setting)) continue;
      if (std::string tag = setting.tag(options); !tag.empty()) tags.push_back(std::move(tag));
    }
  }
  return tags;
}

}  // namespace

const char* title_of(Section section) {
  constexpr const char* kTitles[] = {
      "Model", "Data", "Training", "Adapters", "Strategy and precision", "Run and output"};
  return kTitles[static_cast<size_t>(section)];
}

bool Setting::is_of(Program program) const {
  if (program == Program::kOwn) {
    const bool general = section != Section::kModel && section != Section::kData;
    return more.own.value_or(general && more.programs.empty());
  }
  return more.programs.empty() || std::ranges::count(more.programs, program) > 0;
}

bool Setting::is_default(const TrainOptions& options) const {
  return text(options) == text(defaults());
}

std::string Setting::tag(const TrainOptions& options) const {
  if (more.tag_of) return more.tag_of(options);
  if (facts.tag == nullptr || is_default(options)) return "";
  const bool is_switch = std::holds_alternative<bool*>(read(options));
  return is_switch ? facts.tag : facts.tag + text(options);
}

bool Setting::is_number() const {
  const FieldRef of = read(defaults());
  return std::holds_alternative<StepInterval*>(of) || std::holds_alternative<int*>(of) ||
         std::holds_alternative<int64_t*>(of) || std::holds_alternative<uint64_t*>(of) ||
         std::holds_alternative<double*>(of);
}

void Setting::check_range(const TrainOptions& options) const {
  if (!is_number()) return;
  const FieldRef of = read(options);
  const auto* interval = std::get_if<StepInterval*>(&of);
  if (interval != nullptr && (*interval)->share > 0) return;
  // long double holds every 64-bit integer.
  const auto [value, shown] = std::visit(
      [](const auto& number) -> std::pair<long double, std::string> {
        if constexpr (requires { static_cast<long double>(*number); }) {
          return {static_cast<long double>(*number), concat(*number)};
        } else if constexpr (requires { number->steps; }) {
          return {static_cast<long double>(number->steps), concat(number->steps)};
        }
        return {};
      },
      read(options));
  const bool within = value >= facts.least && value > facts.above && value <= facts.most &&
                      value < facts.below;  // not a number: false
  check(within, ErrorCode::kInvalidArgument, "--", name, " is ", shown, "; it must be ",
        range_text());
}

std::string Setting::range_text() const {
  std::string text;
  const auto add = [&](const char* what, double limit) {
    if (std::isinf(limit)) return;
    const int power = std::ilogb(limit);
    const bool is_power = power >= 20 && std::ldexp(1.0, power) == limit;
    text +=
        concat(text.empty() ? "" : " and ", what, is_power ? concat("2^", power) : concat(limit));
  };
  add("at least ", facts.least);
  add("above ", facts.above);
  add("at most ", facts.most);
  add("below ", facts.below);
  if (std::holds_alternative<StepInterval*>(read(defaults()))) {
    text += ", or between 0 and 1 as a share of all steps";
  }
  return text;
}

const std::vector<Setting>& table() {
  static const std::vector<Setting> all = all_rows();
  return all;
}

const Setting* find(const std::string& name) {
  const auto found = std::ranges::find(table(), name, &Setting::name);
  return found == table().end() ? nullptr : &*found;
}

void check_ranges(const TrainOptions& options) {
  for (const Setting& setting : table()) setting.check_range(options);
}

bool names_layout(const Setting& setting) {
  return setting.section == Section::kStrategy && setting.changes == Changes::kCost;
}

std::vector<std::string> tags(const TrainOptions& options) {
  return tags_of(options, [](const Setting&) { return true; });
}

std::vector<std::string> layout_tags(const TrainOptions& options,
                                     const std::function<bool(const Setting&)>& named) {
  return tags_of(options, [&](const Setting& setting) {
    return names_layout(setting) && (!setting.facts.tuning || named(setting));
  });
}

std::string run_name(const TrainOptions& options, int64_t world_size, bool on_gpus,
                     Program program) {
  std::string strategy = options.parallel.strategy;
  if (const auto stage = zero_stage(strategy)) strategy = concat("zs", *stage);
  std::string name = concat(strategy, "_", name_of(options.parallel.precision.parameter),
                            on_gpus ? "_gpus" : "_cpus", world_size, "_bs",
                            options.training.per_device_train_batch_size);
  if (program != Program::kOwn) name += concat("_sl", options.data.max_seq_length);
  for (const std::string& tag : tags(options)) name += "_" + tag;
  return name;
}

metrics::Value value_of(const FieldRef& field) {
  if (const auto* on = std::get_if<bool*>(&field)) return **on;
  if (const auto* whole = std::get_if<int*>(&field)) return int64_t{**whole};
  if (const auto* whole = std::get_if<int64_t*>(&field)) return **whole;
  if (const auto* whole = std::get_if<uint64_t*>(&field)) return static_cast<int64_t>(**whole);
  if (const auto* real = std::get_if<double*>(&field)) return **real;
  if (const auto* interval = std::get_if<StepInterval*>(&field)) {
    return (*interval)->share > 0 ? metrics::Value((*interval)->share) : (*interval)->steps;
  }
  return text_of(field);
}

namespace {

bool is_recorded(const Setting& setting) {
  return setting.more.recorded.value_or(setting.changes == Changes::kCost);
}

metrics::Value recorded_value(const Setting& setting, const TrainOptions& options) {
  return setting.more.record ? setting.more.record(options) : value_of(setting.read(options));
}

}  // namespace

metrics::Fields record(const TrainOptions& options, Program program) {
  metrics::Fields fields;
  for (const Setting& setting : table()) {
    if (!is_recorded(setting)) continue;
    fields.emplace_back(
        setting.name, setting.is_of(program) ? recorded_value(setting, options) : metrics::Value());
  }
  return fields;
}

std::vector<std::string> recorded_names() {
  std::vector<std::string> names;
  for (const Setting& setting : table()) {
    if (is_recorded(setting)) names.emplace_back(setting.name);
  }
  return names;
}

std::vector<std::string> facts(const Setting& setting) {
  constexpr const char* kChanges[] = {"numbers (losses and weights)",
                                      "cost (time, memory or traffic), and no number",
                                      "output (what is written, and when a run ends)"};
  constexpr const char* kNames[] = {"tessera's own", "from TrainingArguments of Hugging Face",
                                    "from LoraConfig of PEFT"};
  std::vector<std::string> lines;
  if (const std::string range = setting.range_text(); !range.empty()) {
    lines.push_back("Values: " + range);
  }
  lines.push_back(concat("Changes: ", kChanges[static_cast<size_t>(setting.changes)]));
  lines.push_back(concat("Name: ", kNames[static_cast<size_t>(setting.facts.name_of)]));
  return lines;
}

std::string to_markdown() {
  constexpr const char* kChanges[] = {"numbers", "cost", "output"};
  const auto programs = [](const Setting& setting) {
    constexpr const char* kNames[] = {"squad", "causal", "classification", "chat"};
    std::string text;
    for (const Program program : setting.more.programs) {
      text += concat(text.empty() ? " (" : ", ", kNames[static_cast<size_t>(program)]);
    }
    return text.empty() ? "" : text + ")";
  };
  std::string page;
  Section section = Section::kModel;
  for (const Setting& setting : table()) {
    if (page.empty() || setting.section != section) {
      section = setting.section;
      page += concat("\n## ", title_of(section),
                     "\n\n| flag | default | values | changes | what |\n|---|---|---|---|---|\n");
    }
    const std::string value = setting.text(defaults());
    page +=
        concat("| `--", setting.name, "`", programs(setting), " | ",
               value.empty() ? "" : concat("`", value, "`"), " | ",
               setting.is_number() ? setting.range_text() : joined(setting.facts.choices), " | ",
               kChanges[static_cast<size_t>(setting.changes)], " | ", setting.help, " |\n");
  }
  return page;
}

}  // namespace tessera::settings
