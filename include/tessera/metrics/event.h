// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Events of a run: a name and ordered fields, as docs/schema/metrics.schema.json describes them.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::metrics {

/// Text that is already JSON, such as a resolved configuration.
struct JsonText {
  bool operator==(const JsonText&) const = default;  ///< compares the texts
  std::string text;                                  ///< one JSON value
};
/// std::monostate is an unknown value: null in JSON, an empty cell in CSV.
using Value = std::variant<std::monostate, bool, int64_t, double, std::string, JsonText>;
/// Names and values in output order.
using Fields = std::vector<std::pair<std::string, Value>>;

/// One event of a run.
struct Event {
  std::string name;  ///< "step", "eval", ...
  Fields fields;     ///< without the fields of every event

  const Value* find(const std::string& key) const;  ///< null when absent
  /// Nothing when absent or not a number.
  std::optional<double> number(const std::string& key) const;
  std::string text(const std::string& key) const;  ///< "" when absent or not a text
};

/// Record of a run's configuration, written once at its start.
struct RunStartRecord {
  std::string exp;                ///< the run's name
  std::vector<std::string> argv;  ///< the command line
  /// "--name value" of every non-default flag, wherever it was given
  std::string flags;
  JsonText config{"{}"};  ///< the resolved configuration, with the origin of each value
  int64_t world_size = 1, dp = 1, tp = 1, pp = 1,
          cp = 1;                 ///< ranks of the world and along each axis
  int64_t global_batch_size = 1;  ///< rows of an optimizer step
  /// Settings that change a run's cost, "strategy" among them: names of flags.
  Fields settings;
  /// torch's names, e.g. "bfloat16".
  std::string parameter_dtype, gradient_dtype, reduce_dtype, master_dtype, moment_dtype;
  std::string model;                                         ///< name or directory of the model
  int64_t num_parameters = 0, num_trainable_parameters = 0;  ///< elements; tied ones once
  /// With --activation_memory: recomputed blocks of all stages.
  std::optional<int64_t> recomputed_blocks;
  std::string recomputed_by_stage;                ///< recomputed blocks of each stage: "5,0"
  std::optional<int64_t> activation_limit_bytes;  ///< bytes of activations that a rank may hold
  std::string dataset, dataset_sha256;            ///< training files, and the SHA-256 over them
  /// Number of rows, and of optimizer steps of the whole run.
  int64_t num_train_samples = 0, num_train_steps = 0;
  uint64_t seed = 0;  ///< seed of weights, order and dropout
  /// Formula of mfu_ratio, with the dense peak of one device. Unknown: no mfu_ratio.
  std::string mfu_formula;
  std::optional<double> peak_flops_per_second;  ///< peak of one device in the compute dtype
  /// Devices, transport and versions in use.
  std::string device, transport, launcher, driver_version, cuda_version, torch_version,
      tessera_version, git_sha;
};

/// Result of reading one data file.
struct DataRecord {
  /// Rows that were skipped for one reason.
  struct Issue {
    std::string reason;               ///< reason, equal for all of them
    int64_t count = 0;                ///< the number of such rows
    std::vector<std::string> places;  ///< the first three: file and line or path
  };
  std::string file, role;                                ///< role: train or validation
  int64_t rows = 0;                                      ///< rows of the file
  int64_t examples = 0;                                  ///< examples made of the rows
  int64_t skipped_rows = 0;                              ///< rows that were skipped
  std::vector<Issue> issues;                             ///< reasons for skipped rows
  std::vector<std::string> text_columns, label_columns;  ///< names as in the file
  /// Contexts too long for a row, and the rows made of them.
  std::optional<int64_t> cut_contexts, windows;
  std::optional<int64_t> cut_rows;        ///< rows cut at their end
  std::optional<int64_t> dropped_tokens;  ///< tokens after the last whole block
};

/// One optimizer step.
struct StepRecord {
  int64_t step = 0;          ///< counted from 1
  double epoch = 0;          ///< epochs done, fractional
  double loss = 0;           ///< mean over the targets of the global batch
  double learning_rate = 0;  ///< learning rate of this step
  /// Gradient norm before clipping, clip factor, and loss scale in fp16.
  std::optional<double> grad_norm, clip_coefficient, loss_scale;
  bool skipped = false;    ///< whether the weights were left unchanged
  double step_time_s = 0;  ///< seconds since the previous step
  /// Seconds by phase; see docs/reference/metrics.md.
  std::optional<double> data_time_s, forward_s, backward_s, comm_exposed_s, optimizer_s, h2d_d2h_s;
  /// Sums over all ranks; tokens count padding.
  int64_t samples = 0, tokens = 0, supervised_tokens = 0;
  std::optional<double> mfu_ratio;  ///< model FLOP/s over peak FLOP/s
  /// Peak bytes of this rank's device.
  std::optional<int64_t> gpu_mem_allocated_bytes, gpu_mem_reserved_bytes;
  std::optional<int64_t> comm_bytes;  ///< bytes sent by this rank during the step
  /// Rank with the longest step, waiting for others left out; nothing with one rank.
  std::optional<int64_t> slowest_rank;
  /// Losses of the routers of a model with experts, means over targets before their factors.
  std::optional<double> router_balance_loss, router_z_loss;
  /// Entropy of the load over that of an even one, mean of the layers; the least loaded expert's
  /// part of an even share, of all layers; the share of choices that were dropped.
  std::optional<double> expert_load_entropy_ratio, expert_least_load_ratio, expert_dropped_ratio;
  std::vector<int64_t> expert_tokens;  ///< by expert, of all layers; empty: not counted
};

/// One evaluation.
struct EvalRecord {
  int64_t step = 0;                       ///< optimizer steps done
  double epoch = 0;                       ///< epochs done, fractional
  double eval_loss = 0;                   ///< mean over the targets of all rows
  double eval_runtime_s = 0;              ///< seconds of the evaluation
  int64_t samples = 0, steps = 0;         ///< rows, and evaluate() calls
  std::optional<double> eval_perplexity;  ///< causal language models: exp(eval_loss)
  std::optional<double> eval_accuracy, eval_f1_macro, eval_f1_weighted;  ///< classification, [0, 1]
  std::optional<double> eval_exact_match, eval_f1;                       ///< answers, percent
};

/// One checkpoint, written or read.
struct CheckpointRecord {
  std::string path;                               ///< directory of the checkpoint
  int64_t bytes = 0;                              ///< bytes of all files
  double write_s = 0, stall_s = 0, waited_s = 0;  ///< seconds: see SavedCheckpoint
  std::string restored_from;  ///< the checkpoint that was read; empty: one was written
};

/// One sample of the node, and of a GPU when gpu has a value.
struct ResourceRecord {
  /// Index of the GPU on the node, and used bytes by NVML.
  std::optional<int64_t> gpu, gpu_mem_used_bytes;
  std::optional<double> gpu_util_ratio, gpu_power_w;  ///< busy share of time, and watts
  int64_t cpu_rss_tree_bytes = 0;  ///< whole process tree; shared pages count once per process
  /// Bytes of the tree with shared pages divided among processes; page-locked bytes.
  std::optional<int64_t> cpu_pss_tree_bytes, pinned_bytes;
  std::optional<double> cpu_util_ratio;  ///< all cores, in [0, 1]
};

/// An anomaly, such as a NaN loss or a straggler.
struct AnomalyRecord {
  std::string kind;                     ///< nan, spike, straggler, hash_mismatch, oom ...
  std::string detail, tensor;           ///< a sentence, and the tensor's name; may be empty
  std::optional<int64_t> rank_culprit;  ///< nothing when no rank stands out
};

///@{
/// The record as an event of docs/schema/metrics.schema.json.
Event to_event(const RunStartRecord& record);
Event to_event(const DataRecord& record);
Event to_event(const StepRecord& record);
Event to_event(const EvalRecord& record);
Event to_event(const CheckpointRecord& record);
Event to_event(const ResourceRecord& record);
Event to_event(const AnomalyRecord& record);
///@}

/// The event as one line of JSON, without newline. Invalid UTF-8 gets replacement characters;
/// non-finite numbers become null.
std::string to_json(const Event& event);
/// The value as one CSV cell (RFC 4180). A leading apostrophe defuses spreadsheet formulas (= + -
/// @).
std::string to_csv(const Value& value);

}  // namespace tessera::metrics
