// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>

#include "lib/core/file.h"
#include "lib/core/joined.h"
#include "lib/data/delimited.h"
#include "lib/data/foreign_input.h"
#include "lib/data/lines.h"
#include "tessera/core/error.h"
#include "tessera/data/classification.h"

namespace tessera {
namespace {

const std::vector<std::string> kTextNames = {"text", "sentence", "content", "review",
                                             "description"};
const std::vector<std::string> kLabelNames = {"label", "labels", "class", "category"};

std::vector<std::string> split_commas(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

bool is_whole_number(const std::string& text) {
  return !text.empty() && text.size() < 10 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The first of `names` among the columns; ignores ASCII case.
std::optional<size_t> find_usual(const std::vector<std::string>& columns,
                                 const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    for (size_t i = 0; i < columns.size(); ++i) {
      std::string lower = columns[i];
      for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
      if (lower == name) return i;
    }
  }
  return std::nullopt;
}

// Roles of the columns, from the first record.
struct Columns {
  std::vector<size_t> text;
  size_t label = 0;
  bool header = false;
};

size_t resolve(const std::string& wanted, const std::vector<std::string>& first,
               const std::string& path) {
  if (is_whole_number(wanted)) {
    const size_t number = std::stoul(wanted);
    check(number >= 1 && number <= first.size(), ErrorCode::kInvalidArgument, path, ": column ",
          number, " was asked for; the file has columns 1 to ", first.size());
    return number - 1;
  }
  const auto found = std::find(first.begin(), first.end(), wanted);
  check(found != first.end(), ErrorCode::kInvalidArgument, path, ": no column \"", wanted,
        "\"; the first line has ", joined(first));
  return static_cast<size_t>(found - first.begin());
}

// In a table without header, as AG News, column 1 is the label only if it looks like one.
bool holds_integer(const std::vector<Record>& records, size_t column) {
  for (const Record& record : records) {
    const std::string& field = record.fields[column];
    if (!field.empty()) return is_whole_number(field[0] == '-' ? field.substr(1) : field);
  }
  return false;
}

Columns find_columns(const std::vector<Record>& records, const ColumnOptions& options,
                     const std::string& path) {
  const std::vector<std::string>& first = records.front().fields;
  Columns columns;
  const auto usual_text = find_usual(first, kTextNames);
  const auto usual_label = find_usual(first, kLabelNames);
  const std::vector<std::string> texts =
      options.text.empty() ? std::vector<std::string>() : split_commas(options.text);
  const bool named =
      std::any_of(texts.begin(), texts.end(), [](auto& t) { return !is_whole_number(t); }) ||
      (!options.label.empty() && !is_whole_number(options.label));
  columns.header = named || usual_text || usual_label;
  if (!options.label.empty()) {
    columns.label = resolve(options.label, first, path);
  } else if (usual_label) {
    columns.label = *usual_label;
  } else {
    check(!columns.header && holds_integer(records, 0), ErrorCode::kInvalidArgument, path,
          ": no column named like a label (", joined(kLabelNames), "); the first line has ",
          joined(first), "; use --label_column NAME or NUMBER");
  }
  for (const std::string& text : texts) columns.text.push_back(resolve(text, first, path));
  if (texts.empty() && columns.header) {
    check(usual_text.has_value(), ErrorCode::kInvalidArgument, path,
          ": no column named like a text (", joined(kTextNames), "); the first line has ",
          joined(first), "; use --text_column NAME or NUMBER");
    columns.text.push_back(*usual_text);
  } else if (texts.empty()) {
    for (size_t i = 0; i < first.size(); ++i) {
      if (i != columns.label) columns.text.push_back(i);
    }
  }
  check(!columns.text.empty(), ErrorCode::kDataLoss, path,
        ":1: one column only; a label and a text are needed");
  check(std::find(columns.text.begin(), columns.text.end(), columns.label) == columns.text.end(),
        ErrorCode::kInvalidArgument, path, ": column ", columns.label + 1,
        " is both the label and a text");
  return columns;
}

// Adds a row unless its text or label is missing.
void add_row(LabelledTexts& result, LabelledText row, RowIssues* issues) {
  const std::string where = concat(result.path, ":", row.line);
  if (row.label.empty()) return skip_row(issues, "no label", where, "no label");
  if (row.text.find_first_not_of(" \t\r\n") == row.text.npos) {
    return skip_row(issues, "empty text", where, "the text is empty");
  }
  result.rows.push_back(std::move(row));
}

LabelledTexts read_table(const std::string& path, const ColumnOptions& options, bool commas,
                         RowIssues* issues) {
  const std::string bytes = read_file(path);
  const char separator = commas ? separator_of(bytes) : '\t';
  const std::vector<Record> records =
      read_delimited(bytes, separator, commas ? Quoting::kRfc4180 : Quoting::kNone, path);
  check(!records.empty(), ErrorCode::kDataLoss, path, ": no rows");
  const Columns columns = find_columns(records, options, path);
  const auto name = [&](size_t column) {
    return columns.header ? records.front().fields[column] : concat("column ", column + 1);
  };
  LabelledTexts result{path, {}, {}, name(columns.label)};
  for (const size_t column : columns.text) result.text_columns.push_back(name(column));
  if (commas) result.separator = separator;
  const size_t header = columns.header ? 1 : 0;
  for (size_t i = header; i < records.size(); ++i) {
    LabelledText row{"", records[i].fields[columns.label], records[i].line};
    for (const size_t column : columns.text) {
      if (column != columns.text.front()) row.text += ' ';
      row.text += records[i].fields[column];
    }
    add_row(result, std::move(row), issues);
  }
  if (issues) issues->add_rows(static_cast<int64_t>(records.size() - header));
  return result;
}

// Keys of text and label in JSON lines: the given ones, or the first usual name found.
class KeyFinder {
 public:
  KeyFinder(const std::string& given, const std::vector<std::string>& usual)
      : names_(given.empty() ? std::vector<std::string>() : split_commas(given)),
        usual_(usual),
        found_(false) {}

  const std::vector<std::string>& look(const Json& row) {
    if (first_keys_.empty()) first_keys_ = keys_of(row) + other_reader(row, DataReader::kLabels);
    for (size_t i = 0; i < usual_.size() && names_.empty(); ++i) {
      if (row.contains(usual_[i])) names_ = {usual_[i]};
    }
    found_ = found_ || std::any_of(names_.begin(), names_.end(),
                                   [&](const std::string& name) { return row.contains(name); });
    return names_;
  }

  const std::vector<std::string>& names() const { return names_; }

  // Call after the last row.
  void check_found(const std::string& path, const char* flag) const {
    check(found_, ErrorCode::kInvalidArgument, path, ": no row has ",
          joined(names_.empty() ? usual_ : names_), "; of the first, ", first_keys_, "; use ", flag,
          " NAME");
  }

 private:
  std::vector<std::string> names_;
  const std::vector<std::string>& usual_;
  bool found_;
  std::string first_keys_;
};

std::string label_text(const Json& label) {
  if (label.is_string()) return label.as_string();
  // Accepts 1.0 for 1: tables with missing values often contain it.
  const bool whole = label.is_number() && !label.is_integer() &&
                     std::abs(label.as_double()) < 1e9 &&
                     label.as_double() == std::floor(label.as_double());
  return std::to_string(whole ? static_cast<int64_t>(label.as_double()) : label.as_int64());
}

LabelledTexts read_json_lines(const std::string& path, const ColumnOptions& options,
                              RowIssues* issues) {
  LabelledTexts result{path, {}};
  KeyFinder texts(options.text, kTextNames), labels(options.label, kLabelNames);
  std::vector<LabelledText> rows;
  for_each_json_line(path, [&](const Json& json, int64_t line) {
    LabelledText row{"", "", line};
    for (const std::string& name : labels.look(json)) {
      if (const auto label = json.find(name)) row.label = label_text(*label);
    }
    for (const std::string& name : texts.look(json)) {
      const auto text = json.find(name);
      if (!row.text.empty()) row.text += ' ';
      if (text) row.text += text->as_string();
    }
    rows.push_back(std::move(row));
  });
  check(!rows.empty(), ErrorCode::kDataLoss, path, ": no rows");
  labels.check_found(path, "--label_column");
  texts.check_found(path, "--text_column");
  if (issues) issues->add_rows(static_cast<int64_t>(rows.size()));
  for (LabelledText& row : rows) add_row(result, std::move(row), issues);
  result.text_columns = texts.names();
  result.label_column = labels.names().front();
  return result;
}

}  // namespace

LabelledTexts read_labelled_texts(const std::string& path, const ColumnOptions& columns,
                                  RowIssues* issues) {
  const std::string extension = std::filesystem::path(path).extension().string();
  const bool json = extension == ".jsonl" || extension == ".json";
  refuse_foreign_file(path);
  check(json || extension == ".csv" || extension == ".tsv", ErrorCode::kInvalidArgument, path,
        expected_names(path, DataReader::kLabels));
  LabelledTexts result = json ? read_json_lines(path, columns, issues)
                              : read_table(path, columns, extension == ".csv", issues);
  if (issues) issues->check_share(path);
  check(!result.rows.empty(), ErrorCode::kDataLoss, path, ": no rows");
  return result;
}

}  // namespace tessera
