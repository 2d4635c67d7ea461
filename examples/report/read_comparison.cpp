#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>

#include "examples/report/read_runs.h"
#include "tessera/core/error.h"
#include "tessera/core/file.h"

namespace tessera::report {
namespace {

using CsvRow = std::map<std::string, std::string>;

// RFC 4180: cells in quotes may hold commas, line ends and doubled quotes.
std::vector<std::vector<std::string>> csv_cells(const std::string& text) {
  std::vector<std::vector<std::string>> lines{{""}};
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '"' && i + 1 < text.size() && text[i + 1] == '"') {
      lines.back().back() += c;
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && c == ',') {
      lines.back().emplace_back();
    } else if (!quoted && c == '\n') {
      lines.push_back({""});
    } else if (quoted || c != '\r') {
      lines.back().back() += c;
    }
  }
  if (lines.back() == std::vector<std::string>{""}) lines.pop_back();
  return lines;
}

std::vector<CsvRow> read_csv(const std::string& path) {
  const auto lines = csv_cells(read_file(path));
  check(!lines.empty(), ErrorCode::kDataLoss, path, ": is empty; expected a line of column names");
  std::vector<CsvRow> rows;
  for (size_t i = 1; i < lines.size(); ++i) {
    check(lines[i].size() == lines[0].size(), ErrorCode::kDataLoss, path, ": row ", i, ": has ",
          lines[i].size(), " cells, the column names are ", lines[0].size());
    CsvRow row;
    for (size_t column = 0; column < lines[0].size(); ++column) {
      row[lines[0][column]] = lines[i][column];
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string cell(const CsvRow& row, const std::string& column) {
  const auto found = row.find(column);
  return found == row.end() ? "" : found->second;
}

std::optional<double> parse(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// What the run's own files do not say.
void add_row(const CsvRow& row, Run& run) {
  for (const auto& [column, text] : row) {
    const auto value = parse(text);
    if (value && !run.numbers.contains(column)) run.numbers[column] = *value;
    if (!text.empty() && !run.facts.contains(column)) run.facts[column] = text;
  }
}

Outcome outcome_of(const CsvRow& row) {
  const std::string verdict = cell(row, "verdict");
  if (verdict == "out of memory") return Outcome::kOutOfMemory;
  return cell(row, "exit_code") == "0" ? Outcome::kFinished : Outcome::kFailed;
}

// Facts that every row of a comparison shares with its reference unless the row says otherwise.
void share_facts(const Run& reference, Run& run) {
  for (const char* key :
       {"model", "dataset", "dataset_sha256", "max_seq_length", "parameter_dtype", "gradient_dtype",
        "reduce_dtype", "master_dtype", "moment_dtype", "device", "global_batch_size",
        "num_train_steps", "num_train_samples", "num_parameters"}) {
    if (run.facts.contains(key)) continue;
    if (const auto text = reference.text(key); !text.empty()) run.facts[key] = text;
    if (const auto number = reference.number(key)) run.numbers[key] = *number;
  }
}

}  // namespace

void read_comparison(const std::string& folder, std::vector<Run>& runs) {
  const std::vector<CsvRow> rows = read_csv(folder + "/comparison.csv");
  std::vector<Run> ordered;
  std::string reference;
  for (const CsvRow& row : rows) {
    const std::string name = cell(row, "row"), path = folder + "/" + name;
    if (cell(row, "verdict") == "reference") reference = name;
    const size_t before = ordered.size();
    const auto of_row = std::stable_partition(runs.begin(), runs.end(), [&](const Run& run) {
      return run.path != path && !run.path.starts_with(path + "/");
    });
    std::move(of_row, runs.end(), std::back_inserter(ordered));
    runs.erase(of_row, runs.end());
    if (ordered.size() == before) {
      ordered.push_back(
          {.path = path, .outcome = outcome_of(row), .problem = cell(row, "message")});
    }
    for (size_t i = before; i < ordered.size(); ++i) {
      Run& run = ordered[i];
      add_row(row, run);
      if (i > 0) share_facts(ordered.front(), run);
      if (outcome_of(row) == Outcome::kOutOfMemory) run.outcome = Outcome::kOutOfMemory;
      run.comparison = Comparison{
          .folder = folder,
          .reference = cell(row, "reference").empty() ? reference : cell(row, "reference"),
          .verdict = cell(row, "verdict"),
          .worst_parameter = cell(row, "worst_parameter"),
          .loss = parse(cell(row, "loss_difference_ratio")),
          .grad_norm = parse(cell(row, "grad_norm_difference_ratio")),
          .parameters = parse(cell(row, "parameter_difference_ratio")),
          .tolerance = parse(cell(row, "tolerance"))};
    }
  }
  std::ranges::move(runs, std::back_inserter(ordered));
  runs = std::move(ordered);
}

}  // namespace tessera::report
