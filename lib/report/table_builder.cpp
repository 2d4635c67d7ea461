// SPDX-License-Identifier: MIT
#include "lib/report/table_builder.h"

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera::report {

TableBuilder::TableBuilder(const Study& study, std::string id, std::string title, std::string about)
    : study_(study) {
  table_.id = std::move(id);
  table_.title = std::move(title);
  table_.about = std::move(about);
  text("run", "run", [](const Group& group) { return group.name; });
}

TableBuilder& TableBuilder::text(const std::string& key, const std::string& title, Text value) {
  table_.columns.push_back({.key = key, .title = title, .is_text = true});
  sources_.push_back({.text = std::move(value)});
  return *this;
}

TableBuilder& TableBuilder::fact(const std::string& key, const std::string& title) {
  return text(key, title, [key](const Group& group) { return group.text(key); });
}

TableBuilder& TableBuilder::number(const std::string& key, const std::string& title, double scale,
                                   int decimals) {
  return number(
      key, title, [key](const Group& group) { return group.median(key); }, scale, decimals);
}

TableBuilder& TableBuilder::number(const std::string& key, const std::string& title, Number value,
                                   double scale, int decimals) {
  table_.columns.push_back({key, title, scale, decimals});
  sources_.push_back({.number = std::move(value)});
  return *this;
}

TableBuilder& TableBuilder::field(const metrics::MetricField& field) {
  const auto value = [&field, base = study_.baseline](const Group& group) {
    return comparable(field, group, *base) ? group.median(field.name) : std::nullopt;
  };
  return number(field.name, field.more.title, value, field.shown_scale(), field.shown_decimals());
}

TableBuilder& TableBuilder::mebibytes(const std::string& key, const std::string& title) {
  return number(key, title, kToMebibytes);
}

void TableBuilder::row(const Group& group) {
  Row row{.is_baseline = &group == study_.baseline};
  std::string outcome;
  if (!group.finished()) outcome = outcome_name(group.outcome());
  bool said = false;
  for (const Source& source : sources_) {
    Cell cell;
    if (source.text) {
      cell.text = source.text(group);
    } else {
      cell.number = source.number(group);
      if (!cell.number && !said && !outcome.empty()) {
        cell.text = outcome;
        said = true;
      }
    }
    row.cells.push_back(std::move(cell));
  }
  row.mark = study_.marks.of(group.first());
  if (group.first().times_resumed > 0) {
    note(concat(group.name,
                ": went on from a checkpoint; steps, times, rates and mean loss are "
                "those of the last part"));
  }
  table_.rows.push_back(std::move(row));
}

void TableBuilder::rows(const std::vector<const Group*>& groups) {
  for (const Group* group : groups) row(*group);
}

Table TableBuilder::done() {
  for (size_t i = table_.columns.size(); i-- > 1 && !table_.rows.empty();) {
    const bool known = std::ranges::any_of(table_.rows, [&](const Row& row) {
      return row.cells[i].number || !row.cells[i].text.empty();
    });
    if (known) continue;
    const auto at = static_cast<std::ptrdiff_t>(i);
    table_.columns.erase(table_.columns.begin() + at);
    for (Row& row : table_.rows) row.cells.erase(row.cells.begin() + at);
  }
  std::vector<std::string> marks;
  for (const Row& row : table_.rows) marks.push_back(row.mark);
  const std::vector<std::string> notes = study_.marks.notes(marks);
  table_.notes.insert(table_.notes.begin(), notes.begin(), notes.end());
  for (const Group& group : study_.groups) {
    if (group.runs.size() > 1) {
      table_.notes.push_back("runs of one configuration are one row: medians over the repeats");
      break;
    }
  }
  return std::move(table_);
}

std::vector<const Group*> groups_where(const Study& study,
                                       const std::function<bool(const Group&)>& condition) {
  std::vector<const Group*> found;
  for (const Group& group : study.groups) {
    if (condition(group)) found.push_back(&group);
  }
  return found;
}

}  // namespace tessera::report
