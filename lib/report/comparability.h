// SPDX-License-Identifier: MIT
#pragma once
// Comparability of runs: which did the same work, and how the others differ.
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

// Differences that make two runs' rows incomparable: model, data, batch, length, dtypes, steps,
// settings that change numbers, device. The layout is not one. A fact known for only one run counts
// as a difference. A setting missing in a run's configuration has its default: the run is older, or
// of another program.
std::vector<Difference> work_differences(const Run& run, const Run& baseline);

// Names of the compared facts and settings.
std::vector<std::string> work_keys();

// All differences of two runs' configurations, except output paths.
std::vector<Difference> configuration_differences(const Run& a, const Run& b);

// Runs of one configuration with any seeds: repeats of one another.
struct Group {
  std::string name;
  std::vector<const Run*> runs;

  const Run& first() const { return *runs.front(); }
  bool finished() const;
  RunOutcome outcome() const;  // of the first unfinished run
  // Over repeats with a value; deviation() is the sample standard deviation.
  std::optional<double> median(const std::string& key) const;
  std::optional<double> deviation(const std::string& key) const;
  // Number of runs, or the comparison's count for a row without runs.
  int64_t repeats() const;
  std::string text(const std::string& key) const { return first().text(key); }
};
std::vector<Group> group_repeats(const std::vector<Run>& runs);

// Equal for runs with equal settings, except those in leave_out.
std::string settings_key(const Run& run, const std::set<std::string>& leave_out = {});

// Letters for differences from the baseline, equal in every table and plot.
class Marks {
 public:
  Marks() = default;
  Marks(const std::vector<Group>& groups, const Run& baseline);
  // "a,c"; "" for runs with the baseline's work.
  std::string of(const Run& run) const;
  // "a: global batch 16 instead of 8" for each letter in `marks`.
  std::vector<std::string> notes(const std::vector<std::string>& marks) const;

 private:
  std::map<const Run*, std::string> marks_;
  std::vector<std::string> notes_;
};

}  // namespace tessera::report
