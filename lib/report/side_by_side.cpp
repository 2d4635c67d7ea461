// SPDX-License-Identifier: MIT
// Two runs beside each other.
#include <string>

#include "lib/report/tables.h"

namespace tessera::report {
std::vector<Table> side_by_side(const Study& study) {
  if (study.groups.size() != 2) return {};
  const Group& a = *study.baseline;
  const Group& b = &study.groups[0] == &a ? study.groups[1] : study.groups[0];
  Table settings{.id = "settings",
                 .title = "Where the configurations differ",
                 .columns = {{"setting", "setting", 1, -1, true},
                             {"baseline", a.name, 1, -1, true},
                             {"other", b.name, 1, -1, true}}};
  for (const Difference& one : configuration_differences(a.first(), b.first())) {
    settings.rows.push_back(
        {.cells = {{.text = one.what}, {.text = one.value}, {.text = one.baseline}}});
  }
  if (settings.rows.empty()) settings.notes = {"They are equal."};
  Table results{.id = "side_by_side",
                .title = "Side by side",
                .columns = {{"quantity", "quantity", 1, -1, true},
                            {"baseline", a.name},
                            {"other", b.name},
                            {"ratio", b.name + " / " + a.name}}};
  const std::string mark = study.marks.of(b.first());
  using TablePositions = metrics::MetricField::TablePositions;
  for (const metrics::MetricField* field : metrics::fields_of(&TablePositions::side_by_side)) {
    const auto x = a.median(field->name), y = b.median(field->name);
    if ((!x && !y) || !comparable(*field, a, b)) continue;
    const auto cell = [&](const std::optional<double>& value) -> Cell {
      if (!value) return {};
      return {.number = value,
              .text = number_text(*value * field->shown_scale(), field->shown_decimals())};
    };
    const char* beside = field->more.title_beside;
    const std::string title = beside != nullptr ? beside : field->more.title;
    Row row{.cells = {{.text = title}, cell(x), cell(y), {}}, .mark = mark};
    if (x && y && *x != 0) row.cells[3] = {.number = *y / *x, .text = number_text(*y / *x, 3)};
    results.rows.push_back(std::move(row));
  }
  results.notes = study.marks.notes({mark});
  return {settings, results};
}

}  // namespace tessera::report
