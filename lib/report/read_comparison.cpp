// SPDX-License-Identifier: MIT
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <sstream>

#include "lib/core/file.h"
#include "lib/report/comparability.h"
#include "lib/report/read_runs.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::report {
namespace {

using Cells = std::map<std::string, std::string>;  // by column, or by run; "": unknown
struct Entry {
  Cells cells;
  std::vector<std::string> folders;  // of its runs
  bool is_baseline = false;
};

// RFC 4180: quoted cells may contain commas, line ends and doubled quotes.
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

std::vector<Cells> read_csv(const std::string& path) {
  const auto lines = csv_cells(read_file(path));
  check(!lines.empty(), ErrorCode::kDataLoss, path, ": is empty; expected a line of column names");
  std::vector<Cells> rows;
  for (size_t i = 1; i < lines.size(); ++i) {
    check(lines[i].size() == lines[0].size(), ErrorCode::kDataLoss, path, ": row ", i, ": has ",
          lines[i].size(), " cells, the column names are ", lines[0].size());
    Cells row;
    for (size_t column = 0; column < lines[0].size(); ++column) {
      row[lines[0][column]] = lines[i][column];
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<Entry> read_entries(const std::string& folder) {
  std::vector<Entry> entries;
  const std::string path = folder + "/compare.json";
  if (!std::filesystem::exists(path)) {
    for (Cells& row : read_csv(folder + "/comparison.csv")) {
      entries.push_back({.folders = {row["row"]}});
      entries.back().cells = std::move(row);
    }
    return entries;
  }
  const Json file = Json::parse_file(path);
  for (const Json& row : file.at("rows").items()) {
    Entry entry;
    entry.is_baseline = row.get("row", "") == file.get("baseline", "");
    for (const auto& [key, value] : row.members()) {
      if (key == "runs") {
        for (const Json& name : value.items()) entry.folders.push_back(name.as_string());
      } else if (!value.is_null()) {
        entry.cells[key] = value.is_string() ? value.as_string() : value.dump();
      }
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::string cell(const Cells& row, const std::string& column) {
  const auto found = row.find(column);
  return found == row.end() ? "" : found->second;
}

std::optional<double> parse(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Adds facts that the run's own files lack.
void add_row(const Cells& row, Run& run) {
  for (const auto& [column, text] : row) {
    const auto value = parse(text);
    if (value && !run.numbers.contains(column)) run.numbers[column] = *value;
    if (!text.empty() && !run.facts.contains(column)) run.facts[column] = text;
  }
}

RunOutcome outcome_of(const Cells& row) {
  const std::string verdict = cell(row, "verdict");
  if (verdict == "out of memory") return RunOutcome::kOutOfMemory;
  return cell(row, "exit_code") == "0" ? RunOutcome::kFinished : RunOutcome::kFailed;
}

std::map<std::string, std::string> flags_in(const std::string& text) {
  std::map<std::string, std::string> flags;
  std::istringstream words(text);
  std::string flag;
  for (std::string word; words >> word;) {
    if (word.starts_with("--")) {
      flag = word.substr(2);
      flags[flag] = "true";
    } else if (!flag.empty()) {
      flags[flag] = word;
    }
  }
  return flags;
}

// Completes a row without runs: settings of the most similar row except for their flags, and its
// facts where the comparison has none. row_flags: the comparison's flags by run path; a run's own
// flags also include its --config, which holds for all rows.
void fill_in(const std::vector<Run>& runs, const Cells& row_flags, Run& row) {
  const auto flags_of = [&](const Run& run) {
    const auto found = row_flags.find(run.path);
    return flags_in(found == row_flags.end() ? run.text("flags") : found->second);
  };
  const std::map<std::string, std::string> mine = flags_of(row);
  const Run* nearest = nullptr;
  int64_t most = -1;
  for (const Run& run : runs) {
    if (run.settings.empty()) continue;
    const auto common = std::ranges::count_if(
        flags_of(run), [&](const auto& flag) { return mine.contains(flag.first); });
    if (common > most) nearest = &run;
    most = std::max<int64_t>(most, common);
  }
  if (nearest == nullptr) return;
  row.settings = nearest->settings;
  for (const auto& [flag, value] : flags_of(*nearest)) row.settings.erase(flag);
  for (const auto& [flag, value] : mine) row.settings[flag] = value;
  for (const std::string& key : work_keys()) {
    if (mine.contains(key) || row.facts.contains(key) || !nearest->facts.contains(key)) continue;
    row.facts[key] = nearest->facts.at(key);
    if (const auto number = nearest->number(key)) row.numbers[key] = *number;
  }
}

}  // namespace

void read_comparison(const std::string& folder, std::vector<Run>& runs) {
  std::vector<Run> ordered;
  std::string reference;
  Cells row_flags;
  for (const Entry& entry : read_entries(folder)) {
    const Cells& row = entry.cells;
    if (cell(row, "verdict") == "reference" && reference.empty()) reference = cell(row, "row");
    const size_t before = ordered.size();
    const auto of_row = std::stable_partition(runs.begin(), runs.end(), [&](const Run& run) {
      return std::ranges::none_of(
          entry.folders, [&](const std::string& name) { return run.path == folder + "/" + name; });
    });
    std::move(of_row, runs.end(), std::back_inserter(ordered));
    runs.erase(of_row, runs.end());
    if (ordered.size() == before) {
      ordered.push_back({.path = folder + "/" + cell(row, "row"),
                         .outcome = outcome_of(row),
                         .problem = cell(row, "message")});
    }
    const std::string named = cell(row, "reference");
    for (size_t i = before; i < ordered.size(); ++i) {
      Run& run = ordered[i];
      add_row(row, run);
      row_flags[run.path] = cell(row, "flags");
      if (outcome_of(row) == RunOutcome::kOutOfMemory) run.outcome = RunOutcome::kOutOfMemory;
      run.parity = ParityCheck{.folder = folder,
                               .reference = named.empty() ? reference : named,
                               .verdict = cell(row, "verdict"),
                               .worst_parameter = cell(row, "worst_parameter"),
                               .loss = parse(cell(row, "loss_difference_ratio")),
                               .grad_norm = parse(cell(row, "grad_norm_difference_ratio")),
                               .parameters = parse(cell(row, "parameter_difference_ratio")),
                               .tolerance = parse(cell(row, "tolerance")),
                               .is_baseline = entry.is_baseline};
    }
  }
  std::ranges::move(runs, std::back_inserter(ordered));
  runs = std::move(ordered);
  for (Run& run : runs) {
    if (run.settings.empty()) fill_in(runs, row_flags, run);
  }
}

}  // namespace tessera::report
