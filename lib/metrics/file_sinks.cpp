// SPDX-License-Identifier: MIT
// Sinks for the files of an output directory.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "lib/metrics/append_file.h"
#include "lib/metrics/field_table.h"
#include "tessera/core/error.h"
#include "tessera/metrics/sink.h"

namespace tessera::metrics {
namespace {

// Removes a killed run's partial last line.
const std::string& without_torn_line(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
  std::error_code error;  // a file that cannot be truncated cannot be opened for writing either
  if (whole < text.size()) std::filesystem::resize_file(path, whole, error);
  return path;
}

class JsonlSink final : public Sink {
 public:
  explicit JsonlSink(const std::string& path) : file_(without_torn_line(path)) {}
  void write(const Event& event) override { file_.write(to_json(event) + "\n"); }

 private:
  AppendFile file_;
};

// A CSV file with fixed columns; an existing file must have the same.
class CsvFile {
 public:
  CsvFile(const std::string& path, std::vector<std::string> columns)
      : columns_(std::move(columns)),
        header_(header_of(columns_)),
        fresh_(is_fresh(path, header_)),
        file_(path) {
    if (fresh_) file_.write(header_ + "\n");
  }

  template <typename Lookup>  // column name -> const Value*, null for an empty cell
  void write_row(const Lookup& lookup) {
    std::string row;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (i > 0) row += ',';
      if (const Value* value = lookup(columns_[i])) row += to_csv(*value);
    }
    file_.write(row + "\n");
  }

 private:
  static std::string header_of(const std::vector<std::string>& columns) {
    std::string header = columns[0];
    for (size_t i = 1; i < columns.size(); ++i) header.append(",").append(columns[i]);
    return header;
  }

  static bool is_fresh(const std::string& path, const std::string& header) {
    std::ifstream in(path);
    std::string first;
    if (!in || !std::getline(in, first)) return true;
    check(first == header, ErrorCode::kDataLoss, path,
          ": line 1: the columns differ from this version's; move the file away or choose another "
          "--output_dir");
    return false;
  }

  const std::vector<std::string> columns_;
  std::string header_;
  bool fresh_;
  AppendFile file_;
};

// Those of the run's settings stand behind kBeforeSettings.
std::vector<std::string> result_columns(const std::vector<std::string>& settings) {
  std::vector<std::string> columns;
  for (const MetricField& field : field_table()) {
    if (!field.more.column) continue;
    columns.emplace_back(field.name);
    if (columns.back() == kBeforeSettings) {
      columns.insert(columns.end(), settings.begin(), settings.end());
    }
  }
  return columns;
}

class ResultsSink final : public Sink {
 public:
  ResultsSink(const std::string& path, const std::vector<std::string>& settings)
      : file_(path, result_columns(settings)) {}

  void write(const Event& event) override {
    const bool end = event.name == "run_end";
    if (!end && event.name != "run_start" && event.name != "eval") return;
    for (const auto& [key, value] : event.fields) latest_[key] = value;
    if (!end) return;
    file_.write_row([&](const std::string& column) {
      auto found = latest_.find(column);
      return found == latest_.end() ? nullptr : &found->second;
    });
  }

 private:
  CsvFile file_;
  std::map<std::string, Value> latest_;
};

std::vector<std::string> resource_columns() {
  std::vector<std::string> columns{"run_id", "time_unix_s", "elapsed_s"};
  for (const MetricField& field : field_table()) {
    if (field.event == EventKind::kResource) columns.emplace_back(field.name);
  }
  return columns;
}

class ResourcesSink final : public Sink {
 public:
  explicit ResourcesSink(const std::string& path) : file_(path, resource_columns()) {}

  void write(const Event& event) override {
    if (event.name != "resource") return;
    file_.write_row([&](const std::string& column) { return event.find(column); });
  }

 private:
  CsvFile file_;
};

}  // namespace

std::unique_ptr<Sink> make_jsonl_sink(const std::string& path) {
  return std::make_unique<JsonlSink>(path);
}

std::unique_ptr<Sink> make_results_sink(const std::string& path,
                                        const std::vector<std::string>& settings) {
  return std::make_unique<ResultsSink>(path, settings);
}

std::unique_ptr<Sink> make_resources_sink(const std::string& path) {
  return std::make_unique<ResourcesSink>(path);
}

}  // namespace tessera::metrics
