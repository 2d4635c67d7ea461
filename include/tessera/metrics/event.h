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
  bool operator==(const JsonText&) const = default;  ///< compares the texts
  std::string text;                                  ///< one JSON value
};
/// std::monostate is an unknown value: null in JSON, an empty cell in CSV.
using Value = std::variant<std::monostate, bool, int64_t, double, std::string, JsonText>;
/// Names and values in the order they are written in.
using Fields = std::vector<std::pair<std::string, Value>>;

/// One thing that happened in a run.
struct Event {
  std::string name;  ///< "step", "eval", ...
  Fields fields;     ///< without those that every event has

  const Value* find(const std::string& key) const;             ///< null when absent
  std::optional<double> number(const std::string& key) const;  ///< nothing when absent or no number
  std::string text(const std::string& key) const;              ///< "" when absent or no text
};

/// What a run is: written once, at its start.
struct RunStartRecord {
  std::string exp;                ///< the run's name
  std::vector<std::string> argv;  ///< the command line
  /// "--name value" of every one that is not its default, wherever it was given
  std::string flags;
  JsonText config{"{}"};  ///< the resolved configuration, with the origin of each value
  int64_t world_size = 1, dp = 1, tp = 1, pp = 1;  ///< ranks of the world and along each axis
  int64_t global_batch_size = 1;                   ///< rows of an optimizer step
  /// What the run was told that changes what it costs, "strategy" among it: names of flags.
  Fields settings;
  /// As torch names them, e.g. "bfloat16".
  std::string parameter_dtype, gradient_dtype, reduce_dtype, master_dtype, moment_dtype;
  std::string model;                                         ///< its name, or its directory
  int64_t num_parameters = 0, num_trainable_parameters = 0;  ///< elements; tied ones once
  /// With --activation_memory: blocks that run again in backward, of all stages.
  std::optional<int64_t> recomputed_blocks;
  std::string recomputed_by_stage;                ///< of each stage: "5,0"
  std::optional<int64_t> activation_limit_bytes;  ///< bytes of activations that a rank may hold
  std::string dataset, dataset_sha256;  ///< the training files, and their SHA-256 together
  /// Rows, and optimizer steps of the whole run.
  int64_t num_train_samples = 0, num_train_steps = 0;
  uint64_t seed = 0;  ///< seed of weights, order and dropout
  /// How mfu_ratio is reckoned; the peak is dense, of one device. Unknown: there is no mfu_ratio.
  std::string mfu_formula;
  std::optional<double> peak_flops_per_second;  ///< of one device in the compute dtype
  /// What the run uses, and which versions.
  std::string device, transport, launcher, driver_version, cuda_version, torch_version,
      tessera_version, git_sha;
};

/// What became of one data file.
struct DataRecord {
  /// Rows that were skipped for one reason.
  struct Issue {
    std::string reason;               ///< the sentence that is the same for all of them
    int64_t count = 0;                ///< the number of such rows
    std::vector<std::string> places;  ///< the first three: file and line or path
  };
  std::string file, role;                                ///< train or validation
  int64_t rows = 0;                                      ///< in the file
  int64_t examples = 0;                                  ///< made of them
  int64_t skipped_rows = 0;                              ///< rows that were skipped
  std::vector<Issue> issues;                             ///< why
  std::vector<std::string> text_columns, label_columns;  ///< as in the file
  std::optional<int64_t> cut_contexts, windows;  ///< too long for a row, and the rows made of them
  std::optional<int64_t> cut_rows;               ///< at their end
  std::optional<int64_t> dropped_tokens;         ///< after the last whole block
};

/// One optimizer step.
struct StepRecord {
  int64_t step = 0;          ///< counted from 1
  double epoch = 0;          ///< epochs done, with fractions
  double loss = 0;           ///< mean over the targets of the global batch
  double learning_rate = 0;  ///< learning rate of this step
  /// Gradient norm before clipping, clip factor, and loss scale in fp16.
  std::optional<double> grad_norm, clip_coefficient, loss_scale;
  bool skipped = false;    ///< whether weights stayed as they were
  double step_time_s = 0;  ///< seconds from the step before
  /// Seconds by phase; see docs/reference/metrics.md.
  std::optional<double> data_time_s, forward_s, backward_s, comm_exposed_s, optimizer_s, h2d_d2h_s;
  int64_t samples = 0, tokens = 0, supervised_tokens = 0;  ///< of all ranks; tokens count padding
  std::optional<double> mfu_ratio;                         ///< model FLOP/s over peak FLOP/s
  /// Peak bytes of this rank's device.
  std::optional<int64_t> gpu_mem_allocated_bytes, gpu_mem_reserved_bytes;
  std::optional<int64_t> comm_bytes;    ///< sent by this rank during the step
  std::optional<int64_t> slowest_rank;  ///< waiting left out; nothing with one rank
};

/// One evaluation.
struct EvalRecord {
  int64_t step = 0;                       ///< optimizer steps made
  double epoch = 0;                       ///< epochs done, with fractions
  double eval_loss = 0;                   ///< mean over the targets of all rows
  double eval_runtime_s = 0;              ///< seconds of the evaluation
  int64_t samples = 0, steps = 0;         ///< rows, and calls of the evaluation
  std::optional<double> eval_perplexity;  ///< of causal language models: exp(eval_loss)
  std::optional<double> eval_accuracy, eval_f1_macro, eval_f1_weighted;  ///< classification, [0, 1]
  std::optional<double> eval_exact_match, eval_f1;                       ///< of answers, percent
};

/// One checkpoint that was written or read.
struct CheckpointRecord {
  std::string path;                               ///< directory of the checkpoint
  int64_t bytes = 0;                              ///< bytes of all files
  double write_s = 0, stall_s = 0, waited_s = 0;  ///< seconds: see SavedCheckpoint
  std::string restored_from;  ///< the checkpoint that was read; empty: it was written
};

/// One sample of the node, and of one GPU when gpu has a value.
struct ResourceRecord {
  /// Its number on the node, and used bytes as NVML has them.
  std::optional<int64_t> gpu, gpu_mem_used_bytes;
  std::optional<double> gpu_util_ratio, gpu_power_w;  ///< share of time it was busy, and watts
  int64_t cpu_rss_tree_bytes = 0;  ///< the whole process tree; shared pages count once per process
  /// Of the tree, shared pages divided; page-locked bytes.
  std::optional<int64_t> cpu_pss_tree_bytes, pinned_bytes;
  std::optional<double> cpu_util_ratio;  ///< of all cores, in [0, 1]
};

/// Something that should not be.
struct AnomalyRecord {
  std::string kind;            ///< nan, spike, straggler, hash_mismatch, oom ...
  std::string detail, tensor;  ///< a sentence, and the tensor that it is about; may be empty
  std::optional<int64_t> rank_culprit;  ///< nothing where no rank stands out
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

/// One line of JSON without the newline. Text that is not UTF-8 gets replacement characters;
/// non-finite numbers become null.
std::string to_json(const Event& event);
/// One cell of CSV (RFC 4180). Text that a spreadsheet would run as a formula (= + - @) is defused
/// with a leading apostrophe.
std::string to_csv(const Value& value);

}  // namespace tessera::metrics
