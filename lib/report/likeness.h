// SPDX-License-Identifier: MIT
#pragma once
// Which runs did the same work, and what sets the others apart.
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lib/report/run.h"

namespace tessera::report {

struct Difference {
  std::string what, value, baseline;  // "dtype of parameters", "bf16", "fp32"
  std::string text() const;
};

// In what the work of two runs differs so that their rows must not be read as rows of one kind:
// model, data, batch, length, dtypes, steps, every setting that changes numbers, device. A layout
// is no such difference. Of facts, what only one of them is known to have counts as one. A setting
// that a run's configuration does not have is at its default: the run is older, or of another
// program.
std::vector<Difference> work_differences(const Run& run, const Run& baseline);

// The names of what it looks at.
std::vector<std::string> work_keys();

// Everything in which the configurations of two runs differ, apart from paths of outputs.
std::vector<Difference> configuration_differences(const Run& a, const Run& b);

// Runs of one configuration, whatever their seeds: repeats of one another.
struct Group {
  std::string name;
  std::vector<const Run*> runs;

  const Run& first() const { return *runs.front(); }
  bool finished() const;
  Outcome outcome() const;  // of the first that did not finish
  // Over the repeats that have a value; the deviation is the sample's.
  std::optional<double> median(const std::string& key) const;
  std::optional<double> deviation(const std::string& key) const;
  // Runs, or as many as a comparison says that a row without runs had.
  int64_t repeats() const;
  std::string text(const std::string& key) const { return first().text(key); }
};
std::vector<Group> group_repeats(const std::vector<Run>& runs);

// Equal for two runs whose settings are equal, those named left out.
std::string settings_key(const Run& run, const std::set<std::string>& leave_out = {});

// Letters for what sets groups apart from the baseline, the same in every table and plot.
class Marks {
 public:
  Marks() = default;
  Marks(const std::vector<Group>& groups, const Run& baseline);
  // "a,c"; "" for runs that did the baseline's work.
  std::string of(const Run& run) const;
  // "a: global batch 16 instead of 8" for each letter of these marks.
  std::vector<std::string> notes(const std::vector<std::string>& marks) const;

 private:
  std::map<const Run*, std::string> marks_;
  std::vector<std::string> notes_;
};

}  // namespace tessera::report
