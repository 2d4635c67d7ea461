// SPDX-License-Identifier: MIT
#pragma once
// Builds a table column by column.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lib/metrics/field_table.h"
#include "lib/report/tables.h"

namespace tessera::report {

constexpr double kToMebibytes = 1.0 / (1 << 20);

class TableBuilder {
 public:
  using Number = std::function<std::optional<double>(const Group&)>;
  using Text = std::function<std::string(const Group&)>;

  // Starts with the column of run names.
  TableBuilder(const Study& study, std::string id, std::string title, std::string about);

  TableBuilder& text(const std::string& key, const std::string& title, Text value);
  TableBuilder& fact(const std::string& key, const std::string& title);
  // Median over repeats.
  TableBuilder& number(const std::string& key, const std::string& title, double scale = 1,
                       int decimals = -1);
  TableBuilder& number(const std::string& key, const std::string& title, Number value,
                       double scale = 1, int decimals = -1);
  // As the table of metrics says: its title and unit, and nothing for runs that reckon it otherwise
  // than the baseline.
  TableBuilder& field(const metrics::MetricField& field);
  TableBuilder& mebibytes(const std::string& key, const std::string& title);

  void row(const Group& group);
  void rows(const std::vector<const Group*>& groups);
  void note(const std::string& text) { table_.notes.push_back(text); }
  // The table without empty columns, with the notes of its marks.
  Table done();

 private:
  struct Source {
    Number number;
    Text text;
  };
  const Study& study_;
  Table table_;
  std::vector<Source> sources_;
};

std::vector<const Group*> groups_where(const Study& study,
                                       const std::function<bool(const Group&)>& condition);

}  // namespace tessera::report
