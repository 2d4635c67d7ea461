// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// What a run reports: named events with ordered fields, as docs/schema/metrics.schema.json
/// describes them.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::metrics {

/// Text that already is JSON, such as a resolved configuration.
struct JsonText {
  bool operator==(const JsonText&) const = default;
  std::string text;
};
/// std::monostate is an unknown value: null in JSON, an empty cell in CSV.
using Value = std::variant<std::monostate, bool, int64_t, double, std::string, JsonText>;
using Fields = std::vector<std::pair<std::string, Value>>;

struct Event {
  std::string name;
  Fields fields;

  const Value* find(const std::string& key) const;  ///< null when absent
  std::optional<double> number(const std::string& key) const;
  std::string text(const std::string& key) const;  ///< "" when absent or no text
};

struct RunStartRecord {
  std::string exp;  ///< the run's name
  std::vector<std::string> argv;
  /// "--name value" of every one that is not its default, wherever it was given
  std::string flags;
  JsonText config{"{}"};
  int64_t world_size = 1, dp = 1, tp = 1, pp = 1;
  int64_t global_batch_size = 1;
  /// What the run was told that changes what it costs, "strategy" among it: names of flags.
  Fields settings;
  std::string parameter_dtype, gradient_dtype, reduce_dtype, master_dtype, moment_dtype;
  std::string model;
  int64_t num_parameters = 0, num_trainable_parameters = 0;
  std::string dataset, dataset_sha256;
  int64_t num_train_samples = 0, num_train_steps = 0;
  uint64_t seed = 0;
  /// How mfu_ratio is reckoned; the peak is dense, of one device. Unknown: there is no mfu_ratio.
  std::string mfu_formula;
  std::optional<double> peak_flops_per_second;
  std::string device, transport, launcher, driver_version, cuda_version, torch_version,
      tessera_version, git_sha;
};

/// What became of one data file.
struct DataRecord {
  struct Issue {
    std::string reason;
    int64_t count = 0;
    std::vector<std::string> places;
  };
  std::string file, role;  ///< train or validation
  int64_t rows = 0;        ///< in the file
  int64_t examples = 0;    ///< made of them
  int64_t skipped_rows = 0;
  std::vector<Issue> issues;  ///< why
  std::vector<std::string> text_columns, label_columns;
  std::optional<int64_t> cut_contexts, windows;  ///< too long for a row, and the rows made of them
  std::optional<int64_t> cut_rows;               ///< at their end
  std::optional<int64_t> dropped_tokens;         ///< after the last whole block
};

struct StepRecord {
  int64_t step = 0;  ///< counted from 1
  double epoch = 0;
  double loss = 0;
  double learning_rate = 0;
  std::optional<double> grad_norm, clip_coefficient, loss_scale;
  bool skipped = false;
  double step_time_s = 0;
  std::optional<double> data_time_s, forward_s, backward_s, comm_exposed_s, optimizer_s, h2d_d2h_s;
  int64_t samples = 0, tokens = 0, supervised_tokens = 0;  ///< of all ranks; tokens count padding
  std::optional<double> mfu_ratio;
  std::optional<int64_t> gpu_mem_allocated_bytes, gpu_mem_reserved_bytes;
  std::optional<int64_t> comm_bytes;  ///< sent by this rank during the step
  std::optional<int64_t> slowest_rank;
};

struct EvalRecord {
  int64_t step = 0;
  double epoch = 0;
  double eval_loss = 0;
  double eval_runtime_s = 0;
  int64_t samples = 0, steps = 0;
  std::optional<double> eval_perplexity;  ///< of causal language models: exp(eval_loss)
  std::optional<double> eval_accuracy, eval_f1_macro, eval_f1_weighted;  ///< classification, [0, 1]
  std::optional<double> eval_exact_match, eval_f1;                       ///< of answers, percent
};

struct CheckpointRecord {
  std::string path;
  int64_t bytes = 0;
  double write_s = 0, stall_s = 0, waited_s = 0;
  std::string restored_from;
};

/// One sample of the node, and of one GPU when gpu has a value.
struct ResourceRecord {
  std::optional<int64_t> gpu, gpu_mem_used_bytes;
  std::optional<double> gpu_util_ratio, gpu_power_w;
  int64_t cpu_rss_tree_bytes = 0;  ///< the whole process tree; shared pages count once per process
  std::optional<int64_t> cpu_pss_tree_bytes, pinned_bytes;
  std::optional<double> cpu_util_ratio;
};

struct AnomalyRecord {
  std::string kind;  ///< nan, spike, straggler, hash_mismatch, oom ...
  std::string detail, tensor;
  std::optional<int64_t> rank_culprit;
};

Event to_event(const RunStartRecord& record);
Event to_event(const DataRecord& record);
Event to_event(const StepRecord& record);
Event to_event(const EvalRecord& record);
Event to_event(const CheckpointRecord& record);
Event to_event(const ResourceRecord& record);
Event to_event(const AnomalyRecord& record);

/// One line of JSON without the newline. Text that is not UTF-8 gets replacement characters;
/// non-finite numbers become null.
std::string to_json(const Event& event);
/// One cell of CSV (RFC 4180). Text that a spreadsheet would run as a formula (= + - @) is defused
/// with a leading apostrophe.
std::string to_csv(const Value& value);

}  // namespace tessera::metrics
