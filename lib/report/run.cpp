// SPDX-License-Identifier: MIT
#include "lib/report/run.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera::report {

void Series::append(const std::map<std::string, double>& row) {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  ++rows_;
  for (const auto& [name, value] : row) {
    std::vector<double>& column = columns_[name];
    column.resize(rows_ - 1, kUnknown);
    column.push_back(value);
  }
}

void Series::cut(const std::string& column, double from) {
  const std::vector<double> values = this->column(column);
  const auto first = std::ranges::find_if(values, [&](double value) { return value >= from; });
  rows_ = static_cast<size_t>(first - values.begin());
  for (auto& [name, cells] : columns_) cells.resize(std::min(cells.size(), rows_));
}

std::vector<double> Series::column(const std::string& name) const {
  const auto found = columns_.find(name);
  std::vector<double> values;
  if (found != columns_.end()) values = found->second;
  values.resize(rows_, std::numeric_limits<double>::quiet_NaN());
  return values;
}

bool Series::has(const std::string& name) const {
  const auto found = columns_.find(name);
  return found != columns_.end() &&
         std::ranges::any_of(found->second, [](double value) { return std::isfinite(value); });
}

std::optional<double> Series::mean(const std::string& name) const {
  double sum = 0;
  int64_t count = 0;
  for (const double value : column(name)) {
    if (!std::isfinite(value)) continue;
    sum += value;
    ++count;
  }
  return count > 0 ? std::optional(sum / static_cast<double>(count)) : std::nullopt;
}

const char* outcome_name(RunOutcome outcome) {
  switch (outcome) {
    case RunOutcome::kFinished:
      return "finished";
    case RunOutcome::kOutOfMemory:
      return "out of memory";
    case RunOutcome::kFailed:
      return "failed";
    case RunOutcome::kUnfinished:
      return "not finished";
    case RunOutcome::kUnavailable:
      return "not available";
  }
  return "";
}

std::optional<double> Run::number(const std::string& key) const {
  const auto found = numbers.find(key);
  if (found == numbers.end() || !std::isfinite(found->second)) return std::nullopt;
  return found->second;
}

std::string Run::text(const std::string& key) const {
  for (const auto* texts : {&facts, &settings}) {
    if (const auto found = texts->find(key); found != texts->end()) return found->second;
  }
  return "";
}

}  // namespace tessera::report
