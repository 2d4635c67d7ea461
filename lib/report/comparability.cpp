// SPDX-License-Identifier: MIT
#include "lib/report/comparability.h"

#include <algorithm>
#include <cmath>

#include "lib/core/integer_of.h"
#include "lib/metrics/field_table.h"
#include "lib/metrics/statistics.h"
#include "lib/settings/table.h"
#include "tessera/core/error.h"

namespace tessera::report {
namespace {

struct Trait {
  const char *key, *title;
  bool listed = true;  // the table gives it a title
};

// Facts of run_start and settings that say what is computed or what it costs, not how it is spread.
std::vector<Trait> all_traits() {
  std::vector<Trait> traits;
  for (const metrics::MetricField& field : metrics::field_table()) {
    if (field.more.work != nullptr) traits.push_back({field.name, field.more.work});
  }
  for (const settings::Setting& setting : settings::table()) {
    const auto known = std::ranges::find(traits, std::string(setting.name), &Trait::key);
    if (known != traits.end()) continue;
    if (const char* title = setting.facts.work) {
      if (*title != '\0') traits.push_back({setting.name, title});
    } else if (setting.changes == settings::Changes::kNumbers) {
      traits.push_back({setting.name, setting.name, /*listed=*/false});
    }
  }
  return traits;
}

const std::vector<Trait>& traits() {
  static const std::vector<Trait> all = all_traits();
  return all;
}

// Facts that are layouts, or decide what a run costs.
const std::vector<std::string>& layout_keys() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> keys = settings::recorded_names();
    keys.emplace_back("peer");
    for (const metrics::MetricField& field : metrics::field_table()) {
      if (field.more.layout) keys.emplace_back(field.name);
    }
    return keys;
  }();
  return all;
}

// Differences allowed between two runs of one configuration.
const std::set<std::string> kNoConfiguration{"output_dir",   "overwrite_output_dir",
                                             "seed",         "resume_from_checkpoint",
                                             "cache_dir",    "config",
                                             "print_config", "report_to",
                                             "ranks"};

std::string shown(const Run& run, const std::string& key, const std::string& text) {
  if (text.empty()) return run.settings.empty() ? "unknown" : "none";
  return key == "dataset_sha256" ? text.substr(0, 12) : text;
}

// Empty: unknown.
std::optional<std::string> value_of(const Run& run, const Trait& trait) {
  const std::string key = trait.key;
  if (run.facts.contains(key) || run.settings.contains(key)) return run.text(key);
  if (key == "dataset_sha256" && run.facts.contains("dataset")) return run.text("dataset");
  const settings::Setting* setting = settings::find(key);
  if (setting == nullptr || run.settings.empty()) return std::nullopt;
  // Missing in an older version, which used the default, or in a program without this flag.
  const auto& record = setting->more.record;
  return record ? metrics::to_csv(record({})) : setting->text({});
}

std::map<std::string, std::string> configuration(const Run& run) {
  std::map<std::string, std::string> all = run.settings;
  for (const Trait& trait : traits()) {
    if (const std::string text = run.text(trait.key); !text.empty()) all[trait.key] = text;
  }
  for (const std::string& key : layout_keys()) {
    const std::string text = run.text(key);
    if (text.empty()) continue;
    if (settings::find(key) == nullptr) {
      all[key] = text;
    } else {
      all.emplace(key, text);  // the run's own configuration comes first
    }
  }
  std::erase_if(all, [](const auto& item) { return kNoConfiguration.contains(item.first); });
  return all;
}

// "zero2-4" for "zero2-4/repeat-1" and "zero2-4/repeat-2".
std::string common_name(const std::vector<const Run*>& runs) {
  if (runs.size() == 1) return runs.front()->name;
  std::string name = runs.front()->name;
  for (const Run* run : runs) {
    const auto end = std::ranges::mismatch(name, run->name).in1;
    name.erase(end, name.end());
  }
  for (const char* tail : {"repeat", "seed", "run", "r"}) {
    while (!name.empty() && std::string("/-_. ").find(name.back()) != std::string::npos) {
      name.pop_back();
    }
    if (name.ends_with(std::string("/") + tail) || name.ends_with(std::string("-") + tail) ||
        name.ends_with(std::string("_") + tail)) {
      name.erase(name.size() - std::string(tail).size());
    }
  }
  while (!name.empty() && std::string("/-_. ").find(name.back()) != std::string::npos) {
    name.pop_back();
  }
  return name.empty() ? runs.front()->name : name;
}

std::vector<double> values_of(const Group& group, const std::string& key) {
  std::vector<double> values;
  for (const Run* run : group.runs) {
    if (const auto value = run->number(key)) values.push_back(*value);
  }
  return values;
}

// a to z, a1 to z1, ...
std::string letter(size_t index) {
  std::string text(1, static_cast<char>('a' + index % 26));
  return index < 26 ? text : text + std::to_string(index / 26);
}

}  // namespace

std::string Difference::text() const { return concat(what, " ", value, " instead of ", baseline); }

std::vector<Difference> work_differences(const Run& run, const Run& baseline) {
  std::vector<Difference> found;
  for (const Trait& trait : traits()) {
    const auto mine = value_of(run, trait), theirs = value_of(baseline, trait);
    if (mine == theirs) continue;
    // Without a recorded configuration a flag is unknown, which counts as equal.
    const bool fact = run.facts.contains(trait.key) || baseline.facts.contains(trait.key);
    if ((!mine || !theirs) && !(trait.listed && fact)) continue;
    found.push_back({trait.title, shown(run, trait.key, mine.value_or("")),
                     shown(baseline, trait.key, theirs.value_or(""))});
  }
  // Implied differences: another model implies other parameters, other data another number of
  // samples.
  const auto has = [&](const char* what) {
    return std::ranges::any_of(found, [&](const Difference& one) { return one.what == what; });
  };
  const bool model = has("model"), data = has("data");
  // Gradient and reduce dtypes that follow the parameters' in both runs are implied too.
  const auto follows = [&](const char* key) {
    return run.text(key) == run.text("parameter_dtype") &&
           baseline.text(key) == baseline.text("parameter_dtype");
  };
  const bool gradients = follows("gradient_dtype"), sums = follows("reduce_dtype");
  std::erase_if(found, [&](const Difference& one) {
    return (model && one.what == "parameters") || (data && one.what == "training samples") ||
           (gradients && one.what == "dtype of gradients") ||
           (sums && one.what == "dtype of sums over ranks");
  });
  return found;
}

std::vector<std::string> work_keys() {
  std::vector<std::string> keys{"dataset"};
  for (const Trait& trait : traits()) keys.emplace_back(trait.key);
  return keys;
}

std::vector<Difference> configuration_differences(const Run& a, const Run& b) {
  std::map<std::string, std::string> of_a = configuration(a), of_b = configuration(b);
  for (const char* key : {"seed", "transport", "launcher", "driver_version", "cuda_version",
                          "torch_version", "tessera_version", "git_sha"}) {
    of_a[key] = a.text(key);
    of_b[key] = b.text(key);
  }
  std::set<std::string> keys;
  for (const auto* all : {&of_a, &of_b}) {
    for (const auto& [key, value] : *all) keys.insert(key);
  }
  std::vector<Difference> found;
  for (const std::string& key : keys) {
    if (of_a[key] != of_b[key]) found.push_back({key, of_a[key], of_b[key]});
  }
  return found;
}

std::string settings_key(const Run& run, const std::set<std::string>& leave_out) {
  std::string key = run.settings.empty() ? run.name : "";
  for (const auto& [name, value] : configuration(run)) {
    if (!leave_out.contains(name)) key += concat(name, "=", value, "\n");
  }
  return key;
}

std::vector<Group> group_repeats(const std::vector<Run>& runs) {
  std::vector<Group> groups;
  std::map<std::string, size_t> places;
  for (const Run& run : runs) {
    const auto [place, fresh] = places.emplace(settings_key(run), groups.size());
    if (fresh) groups.emplace_back();
    groups[place->second].runs.push_back(&run);
  }
  for (Group& group : groups) group.name = common_name(group.runs);
  return groups;
}

bool Group::finished() const {
  return std::ranges::any_of(runs,
                             [](const Run* r) { return r->outcome == RunOutcome::kFinished; });
}

RunOutcome Group::outcome() const {
  for (const Run* run : runs) {
    if (run->outcome != RunOutcome::kFinished) return run->outcome;
  }
  return RunOutcome::kFinished;
}

std::optional<double> Group::median(const std::string& key) const {
  const std::vector<double> values = values_of(*this, key);
  if (values.empty()) return std::nullopt;
  return metrics::describe(values).median;
}

int64_t Group::repeats() const {
  const int64_t told = integer_of(first().number("repeats").value_or(1));
  return first().steps.empty() ? told : static_cast<int64_t>(runs.size());
}

std::optional<double> Group::deviation(const std::string& key) const {
  const std::vector<double> values = values_of(*this, key);
  if (values.size() < 2) {
    // Statistics that a comparison computed for a row without runs.
    if (!first().steps.empty()) return std::nullopt;
    if (key == "tokens_per_second_median") return first().number("tokens_per_second_repeat_std");
    if (key == "step_time_median_s") return first().number("step_time_repeat_std_s");
    return std::nullopt;
  }
  const auto count = static_cast<double>(values.size());
  return metrics::describe(values).std * std::sqrt(count / (count - 1));
}

Marks::Marks(const std::vector<Group>& groups, const Run& baseline) {
  std::vector<std::string> texts;
  for (const Group& group : groups) {
    std::string mark;
    for (const Difference& difference : work_differences(group.first(), baseline)) {
      const std::string text = difference.text();
      const auto place = std::ranges::find(texts, text);
      const auto index = static_cast<size_t>(place - texts.begin());
      if (place == texts.end()) {
        texts.push_back(text);
        notes_.push_back(letter(index) + ": " + text);
      }
      if (!mark.empty()) mark += ',';
      mark += letter(index);
    }
    for (const Run* run : group.runs) marks_[run] = mark;
  }
}

std::string Marks::of(const Run& run) const {
  const auto found = marks_.find(&run);
  return found == marks_.end() ? "" : found->second;
}

std::vector<std::string> Marks::notes(const std::vector<std::string>& marks) const {
  std::string all;
  for (const std::string& mark : marks) all += "," + mark;
  all += ",";
  std::vector<std::string> notes;
  for (const std::string& note : notes_) {
    const std::string mark = concat(",", note.substr(0, note.find(':')), ",");
    if (all.find(mark) != all.npos) notes.push_back(note);
  }
  return notes;
}

}  // namespace tessera::report
