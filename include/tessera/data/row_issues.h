// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Rows of a data file that cannot be used: skipped and counted instead of ending the run.
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// Of one file, by reason. A reader that is given none, or a strict one, throws at the first such
/// row.
class RowIssues {
 public:
  /// strict: the first such row is an error.
  explicit RowIssues(bool strict = false) : strict_(strict) {}

  /// Rows that cannot be used for one reason.
  struct Kind {
    std::string reason;               ///< the same sentence for all of them
    int64_t count = 0;                ///< the number of such rows
    std::vector<std::string> places;  ///< the first three: file and line, or file and JSON path
    std::string detail = {};          ///< of the first one: with the row's values and a remedy
  };

  void add_rows(int64_t count) { rows_ += count; }  ///< that the file has, bad ones included
  /// Counts a row of the file that is not used.
  void skip(const std::string& reason, const std::string& place, const std::string& detail = {});

  bool strict() const { return strict_; }  ///< whether the first bad row is an error
  int64_t rows() const { return rows_; }   ///< rows of the file, bad ones included
  int64_t skipped() const;                 ///< rows skipped for any reason
  const std::vector<Kind>& kinds() const { return kinds_; }  ///< in order of appearance
  /// "5 of 800 rows skipped: no label (5): a.csv:7, a.csv:9, a.csv:12, ..."
  std::string text() const;

  static constexpr double kMostSkipped = 0.05;  ///< of the rows
  /// Throws Error(kDataLoss) when more rows than that were skipped, with the detail of most.
  void check_share(const std::string& path) const;

 private:
  bool strict_;
  int64_t rows_ = 0;
  std::vector<Kind> kinds_;
};

/// Whether a reader throws at the first such row.
inline bool stops_at_first(const RowIssues* issues) { return !issues || issues->strict(); }

/// Skips the row, or throws Error(kDataLoss): "{place}: {detail}".
void skip_row(RowIssues* issues, const std::string& reason, const std::string& place,
              const std::string& detail);

}  // namespace tessera
