#include <algorithm>
#include <filesystem>
#include <optional>

#include "lib/data/delimited.h"
#include "lib/data/lines.h"
#include "tessera/core/error.h"
#include "tessera/core/file.h"
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

std::string join(const std::vector<std::string>& parts) {
  std::string joined;
  for (const std::string& part : parts) joined += (joined.empty() ? "" : ", ") + part;
  return joined;
}

bool is_number(const std::string& text) {
  return !text.empty() && text.size() < 10 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The first of `names` among the columns, ignoring the case of ASCII letters.
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

// Which columns hold what, once the first record is known.
struct Columns {
  std::vector<size_t> text;
  size_t label = 0;
  bool header = false;
};

size_t resolve(const std::string& wanted, const std::vector<std::string>& first,
               const std::string& path) {
  if (is_number(wanted)) {
    const size_t number = std::stoul(wanted);
    check(number >= 1 && number <= first.size(), ErrorCode::kInvalidArgument, path, ": column ",
          number, " was asked for; the file has columns 1 to ", first.size());
    return number - 1;
  }
  const auto found = std::find(first.begin(), first.end(), wanted);
  check(found != first.end(), ErrorCode::kInvalidArgument, path, ": no column \"", wanted,
        "\"; the first line has ", join(first));
  return static_cast<size_t>(found - first.begin());
}

Columns find_columns(const std::vector<std::string>& first, const ColumnOptions& options,
                     const std::string& path) {
  Columns columns;
  const auto usual_text = find_usual(first, kTextNames);
  const auto usual_label = find_usual(first, kLabelNames);
  const std::vector<std::string> texts =
      options.text.empty() ? std::vector<std::string>() : split_commas(options.text);
  const bool named =
      std::any_of(texts.begin(), texts.end(), [](auto& t) { return !is_number(t); }) ||
      (!options.label.empty() && !is_number(options.label));
  columns.header = named || (usual_text && usual_label);
  if (!options.label.empty()) {
    columns.label = resolve(options.label, first, path);
  } else if (columns.header) {
    check(usual_label.has_value(), ErrorCode::kInvalidArgument, path,
          ": no column named like a label (", join(kLabelNames), "); use --label_column");
    columns.label = *usual_label;
  }
  for (const std::string& text : texts) columns.text.push_back(resolve(text, first, path));
  if (texts.empty() && columns.header) {
    check(usual_text.has_value(), ErrorCode::kInvalidArgument, path,
          ": no column named like a text (", join(kTextNames), "); use --text_column");
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

LabelledTexts read_table(const std::string& path, const ColumnOptions& options, bool commas) {
  const std::vector<Record> records = read_delimited(
      read_file(path), commas ? ',' : '\t', commas ? Quoting::kRfc4180 : Quoting::kNone, path);
  check(!records.empty(), ErrorCode::kDataLoss, path, ": no rows");
  const Columns columns = find_columns(records.front().fields, options, path);
  LabelledTexts result{path, {}};
  for (size_t i = columns.header ? 1 : 0; i < records.size(); ++i) {
    LabelledText row{"", records[i].fields[columns.label], records[i].line};
    for (const size_t column : columns.text) {
      if (column != columns.text.front()) row.text += ' ';
      row.text += records[i].fields[column];
    }
    result.rows.push_back(std::move(row));
  }
  return result;
}

LabelledTexts read_json_lines(const std::string& path, const ColumnOptions& options) {
  LabelledTexts result{path, {}};
  const auto key_of = [&](const Json& row, const std::string& wanted,
                          const std::vector<std::string>& usual) {
    if (!wanted.empty()) return wanted;
    for (const std::string& name : usual) {
      if (row.contains(name)) return name;
    }
    row.fail("has none of " + join(usual) + "; use --text_column and --label_column");
  };
  for_each_json_line(path, [&](const Json& json, int64_t line) {
    LabelledText row;
    row.line = line;
    const Json label = json.at(key_of(json, options.label, kLabelNames));
    row.label = label.is_string() ? label.as_string() : std::to_string(label.as_int64());
    bool first = true;
    for (const std::string& name : split_commas(key_of(json, options.text, kTextNames))) {
      if (!first) row.text += ' ';
      first = false;
      row.text += json.at(name).as_string();
    }
    result.rows.push_back(std::move(row));
  });
  return result;
}

}  // namespace

LabelledTexts read_labelled_texts(const std::string& path, const ColumnOptions& columns) {
  const std::string extension = std::filesystem::path(path).extension().string();
  const bool json = extension == ".jsonl" || extension == ".json";
  check(json || extension == ".csv" || extension == ".tsv", ErrorCode::kInvalidArgument, path,
        ": expected a file named .csv, .tsv, .jsonl or .json");
  LabelledTexts result =
      json ? read_json_lines(path, columns) : read_table(path, columns, extension == ".csv");
  check(!result.rows.empty(), ErrorCode::kDataLoss, path, ": no rows");
  return result;
}

}  // namespace tessera
