// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Labelled texts from CSV, TSV and JSON lines.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/data/row_issues.h"
#include "tessera/data/tokenizer.h"

namespace tessera {

/// One row of a file.
struct LabelledText {
  std::string text;   ///< the text columns, joined by a space
  std::string label;  ///< as in the file
  int64_t line = 0;   ///< line of the record's start
};

/// Rows of a file, with column names.
struct LabelledTexts {
  std::string path;                ///< path of the file
  std::vector<LabelledText> rows;  ///< without skipped rows
  /// Names from the header, or "column 2" without one.
  std::vector<std::string> text_columns = {};
  std::string label_column = {};  ///< name of the label column, like text_columns
  char separator = '\0';          ///< between the fields of a .csv file
};

/// Columns of text and label.
struct ColumnOptions {
  /// A column name, a number from 1, or a comma-separated list, whose texts are joined by a space.
  /// Empty: columns with usual names (text, sentence, ...; label, class, ...). In a table without a
  /// header column 1 is the label, if it holds integers, and the others are text.
  std::string text = {};
  std::string label = {};  ///< the label column, in the same form
};

/// Reads a file by its extension: .csv (RFC 4180; the first line says whether a comma, a semicolon
/// or a tab separates), .tsv (tabs, no quoting), .jsonl or .json (one object a line). CSV and TSV
/// have a header if columns are given by name or a usual name is found. Throws Error(kDataLoss)
/// with file and line for malformed input. Rows without text or label are skipped with `issues`,
/// errors without.
LabelledTexts read_labelled_texts(const std::string& path, const ColumnOptions& columns = {},
                                  RowIssues* issues = nullptr);

/// Mapping from labels in files to class numbers.
class LabelMap {
 public:
  /// Integers that start at 0 or 1 keep their order and gaps (1-based ones shift down by one);
  /// other labels are numbered in sorted order.
  static LabelMap from(const LabelledTexts& texts);
  /// Class i is names[i], as in a model's id2label; with accept_numbers integers 0..n-1 are valid,
  /// too.
  static LabelMap from_names(std::vector<std::string> names, bool accept_numbers = true);

  int64_t size() const { return static_cast<int64_t>(names_.size()); }  ///< the number of classes
  const std::vector<std::string>& names() const {
    return names_;
  }  ///< names of the classes, by class number
  /// The label's class number; nothing for an unknown label.
  std::optional<int32_t> find(const std::string& label) const;
  /// The label's class number. Throws Error(kDataLoss) with `where` and the known labels for
  /// another.
  int32_t id(const std::string& label, const std::string& where) const;

 private:
  void set_names(std::vector<std::string> names);

  std::vector<std::string> names_;
  std::map<std::string, int32_t> ids_;
  bool accept_numbers_ = false;
};

/// Tokenises every text with the tokenizer's template, at most max_seq_length tokens. Rows without
/// tokens, or with a label that is not in the map, are skipped with `issues`, errors without.
Dataset classification_examples(const LabelledTexts& texts, const LabelMap& labels,
                                const Tokenizer& tokenizer, int64_t max_seq_length,
                                RowIssues* issues = nullptr, const Progress& progress = {});

}  // namespace tessera
