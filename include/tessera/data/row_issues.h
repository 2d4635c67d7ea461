// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Issues of a data file: rows that are skipped and counted instead of ending the run.
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// Skipped rows of one file, by reason. A reader without one, or with a strict one, throws at the
/// first such row.
class RowIssues {
 public:
  /// strict: the first such row is an error.
  explicit RowIssues(bool strict = false) : strict_(strict) {}

  /// Rows skipped for one reason.
  struct Kind {
    std::string reason;               ///< reason, equal for all of them
    int64_t count = 0;                ///< the number of such rows
    std::vector<std::string> places;  ///< the first three: file and line, or file and JSON path
    std::string detail = {};          ///< of the first row: its values and a remedy
  };

  void add_rows(int64_t count) { rows_ += count; }  ///< counts rows of the file, bad ones included
  /// Counts a skipped row.
  void skip(const std::string& reason, const std::string& place, const std::string& detail = {});

  bool strict() const { return strict_; }  ///< whether the first bad row is an error
  int64_t rows() const { return rows_; }   ///< rows of the file, bad ones included
  int64_t skipped() const;                 ///< rows skipped for any reason
  const std::vector<Kind>& kinds() const { return kinds_; }  ///< in order of occurrence
  /// Summary: "5 of 800 rows skipped: no label (5): a.csv:7, a.csv:9, a.csv:12, ..."
  std::string text() const;

  static constexpr double kMostSkipped = 0.05;  ///< largest accepted share of skipped rows
  /// Throws Error(kDataLoss) above that share, with the detail of the most frequent reason.
  void check_share(const std::string& path) const;

 private:
  bool strict_;
  int64_t rows_ = 0;
  std::vector<Kind> kinds_;
};

/// Whether a reader throws at the first bad row.
inline bool stops_at_first(const RowIssues* issues) { return !issues || issues->strict(); }

/// Skips the row, or throws Error(kDataLoss): "{place}: {detail}".
void skip_row(RowIssues* issues, const std::string& reason, const std::string& place,
              const std::string& detail);

}  // namespace tessera
