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

// Columns of results.csv, before and after the run's settings.
const std::vector<std::string>& columns_before() {
  static const std::vector<std::string> columns{
      "run_id", "time_unix_s", "exp", "flags", "world_size", "dp", "tp", "pp", "global_batch_size"};
  return columns;
}

const std::vector<std::string>& columns_after() {
  static const std::vector<std::string> columns{
      // clang-format off
    "parameter_dtype", "gradient_dtype", "reduce_dtype", "master_dtype",
    "moment_dtype", "model", "num_parameters", "num_trainable_parameters",
    "recomputed_blocks", "recomputed_by_stage", "activation_limit_bytes", "dataset", "dataset_sha256", "num_train_samples",
    "num_train_steps", "seed", "mfu_formula", "peak_flops_per_second", "device", "transport", "launcher", "driver_version", "cuda_version",
    "torch_version", "tessera_version", "git_sha",
    "train_runtime", "train_samples_per_second", "train_steps_per_second",
    "train_tokens_per_second", "train_loss", "train_loss_final", "train_steps", "train_samples",
    "train_tokens", "eval_loss", "eval_runtime", "eval_samples_per_second",
    "eval_steps_per_second", "eval_accuracy", "eval_f1_macro", "eval_f1_weighted",
    "eval_exact_match", "eval_f1", "eval_perplexity", "epoch", "step",
    "step_time_mean_s", "step_time_median_s", "step_time_std_s", "step_time_p90_s",
    "step_time_p99_s", "tokens_per_second_median", "tokens_per_second_std",
    "warmup_steps_excluded", "gpu_mem_used_peak_bytes", "gpu_mem_used_mean_bytes",
    "gpu_mem_used_min_bytes", "gpu_mem_allocated_peak_bytes", "gpu_mem_reserved_peak_bytes",
    "gpu_util_mean_ratio", "cpu_rss_tree_peak_bytes", "cpu_rss_tree_mean_bytes",
    "cpu_pss_tree_peak_bytes", "pinned_peak_bytes", "num_skipped_steps", "mfu_ratio",
    "parameter_bytes", "gradient_bytes", "optimizer_bytes", "buffer_bytes", "host_bytes",
    "pinned_bytes", "comm_bytes",
    "exit_code", "param_hash_final"
      // clang-format on
  };
  return columns;
}

std::vector<std::string> result_columns(const std::vector<std::string>& settings) {
  std::vector<std::string> all = columns_before();
  all.insert(all.end(), settings.begin(), settings.end());
  all.insert(all.end(), columns_after().begin(), columns_after().end());
  return all;
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

const std::vector<std::string>& resource_columns() {
  static const std::vector<std::string> columns{
      "run_id",       "time_unix_s",        "elapsed_s",
      "gpu",          "gpu_mem_used_bytes", "gpu_util_ratio",
      "gpu_power_w",  "cpu_rss_tree_bytes", "cpu_pss_tree_bytes",
      "pinned_bytes", "cpu_util_ratio"};
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
