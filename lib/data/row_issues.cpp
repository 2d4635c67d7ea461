// SPDX-License-Identifier: MIT
#include "tessera/data/row_issues.h"

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr size_t kPlaces = 3;

}  // namespace

void RowIssues::skip(const std::string& reason, const std::string& place,
                     const std::string& detail) {
  auto kind = std::find_if(kinds_.begin(), kinds_.end(),
                           [&](const Kind& known) { return known.reason == reason; });
  if (kind == kinds_.end()) kind = kinds_.insert(kind, {reason, 0, {}, detail});
  ++kind->count;
  if (kind->places.size() < kPlaces) kind->places.push_back(place);
}

int64_t RowIssues::skipped() const {
  int64_t count = 0;
  for (const Kind& kind : kinds_) count += kind.count;
  return count;
}

std::string RowIssues::text() const {
  std::string text = concat(skipped(), " of ", rows_, " rows skipped");
  for (const Kind& kind : kinds_) {
    text += concat(&kind == &kinds_.front() ? ": " : "; ", kind.reason, " (", kind.count, "): ");
    for (size_t i = 0; i < kind.places.size(); ++i) text += (i ? ", " : "") + kind.places[i];
    if (kind.count > static_cast<int64_t>(kPlaces)) text += ", ...";
  }
  return text;
}

void RowIssues::check_share(const std::string& path) const {
  if (static_cast<double>(skipped()) <= kMostSkipped * static_cast<double>(rows_)) return;
  const Kind& most = *std::ranges::max_element(kinds_, {}, &Kind::count);
  const bool explained = !most.detail.empty() && most.reason.find(most.detail) == std::string::npos;
  fail(ErrorCode::kDataLoss, path, ": more than ", 100 * kMostSkipped,
       " % of the rows cannot be used: ", text(),
       explained ? concat("; ", most.places.front(), ": ", most.detail) : "");
}

void skip_row(RowIssues* issues, const std::string& reason, const std::string& place,
              const std::string& detail) {
  check(!stops_at_first(issues), ErrorCode::kDataLoss, place, ": ", detail);
  issues->skip(reason, place, detail);
}

}  // namespace tessera
