// SPDX-License-Identifier: MIT
#pragma once
// Runs for the report's tests, written as by the programs.
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lib/settings/table.h"
#include "tessera/core/error.h"
#include "tessera/metrics/recorder.h"
#include "tests/support/text.hpp"

namespace tessera::test {

struct MadeRun {
  metrics::RunStartRecord start;
  TrainOptions options;
  std::vector<std::pair<std::string, std::string>> settings;  // flags besides those of start
  double step_time_s = 0.1, step_time_growth_s = 0;
  int64_t steps = 10, first_step = 1, tokens = 1000;
  double loss = 2;
  int64_t gpu_bytes = 0, cpu_bytes = int64_t{100} << 20;
  std::optional<double> mfu, backward_s, comm_exposed_s;
  metrics::Fields end;  // further fields of run_end
  bool ends = true;
  int exit_code = 0;
  std::vector<double> eval_losses;  // at the end, one per epoch; the last after the last step
  std::string restored_from;        // the checkpoint it resumes from

  MadeRun() {
    options.parallel.strategy = "ddp";
    start.world_size = start.dp = 2;
    options.training.per_device_train_batch_size = 4;
    start.global_batch_size = 8;
    options.data.max_seq_length = 128;
    start.parameter_dtype = start.gradient_dtype = start.reduce_dtype = "fp32";
    start.master_dtype = start.moment_dtype = "fp32";
    start.model = "bloom-tiny";
    start.num_parameters = 1000;
    start.dataset = "data/squad.json";
    start.dataset_sha256 = std::string(64, 'a');
    start.num_train_samples = 100;
    start.num_train_steps = 10;
    start.device = "cpu";
    start.transport = start.launcher = "threads";
    start.torch_version = start.tessera_version = "1";
  }

  // Sets the ranks of the data axis, and the global batch accordingly.
  MadeRun& ranks(int64_t count) {
    start.world_size = start.dp = count;
    start.global_batch_size = count * options.training.per_device_train_batch_size *
                              options.training.gradient_accumulation_steps;
    return *this;
  }

  // Appends to metrics.jsonl of the folder.
  void write(const std::string& folder) const {
    std::filesystem::create_directories(folder);
    std::vector<std::unique_ptr<metrics::Sink>> sinks;
    sinks.push_back(metrics::make_jsonl_sink(folder + "/metrics.jsonl"));
    metrics::Recorder recorder(std::move(sinks));
    metrics::RunStartRecord record = start;
    record.settings = settings::record(options, Program::kSquad);
    record.exp = settings::run_name(options, record.world_size, !record.device.starts_with("cpu"));
    std::string config =
        "{\"output_dir\":{\"value\":\"" + folder + "\",\"origin\":\"command line\"}";
    for (const auto& [name, value] : settings) {
      config += ",\"" + name + "\":{\"value\":\"" + value + "\",\"origin\":\"command line\"}";
    }
    record.config = {config + "}"};
    recorder.start(record);
    if (!restored_from.empty()) {
      recorder.checkpoint({.path = restored_from, .restored_from = restored_from});
    }
    for (int64_t step = first_step; step < first_step + steps; ++step) {
      metrics::StepRecord r;
      r.step = step;
      r.epoch = static_cast<double>(step) / 10;
      r.loss = loss / static_cast<double>(step);
      r.step_time_s = step_time_s + step_time_growth_s * static_cast<double>(step);
      r.backward_s = backward_s;
      r.comm_exposed_s = comm_exposed_s;
      r.tokens = tokens;
      r.samples = start.global_batch_size;
      if (gpu_bytes > 0) r.gpu_mem_allocated_bytes = r.gpu_mem_reserved_bytes = gpu_bytes;
      r.mfu_ratio = mfu;
      recorder.step(r);
    }
    metrics::ResourceRecord resource{.cpu_rss_tree_bytes = cpu_bytes};
    recorder.resource(resource);
    for (size_t i = 0; i < eval_losses.size(); ++i) {
      const auto later = static_cast<int64_t>(eval_losses.size() - 1 - i);
      recorder.eval({.step = first_step + steps - 1 - later,
                     .epoch = static_cast<double>(i + 1),
                     .eval_loss = eval_losses[i],
                     .eval_runtime_s = 1,
                     .samples = 20,
                     .steps = 5});
    }
    if (exit_code == 3) recorder.anomaly({.kind = "oom", .detail = "out of memory"});
    if (ends) recorder.finish({.exit_code = exit_code, .extra = end});
  }
};

// Runs on 1, 2 and 4 ranks in folders `name`-1 and so on, with 1000 tokens per step and rank.
inline void write_runs(const std::string& name,
                       const std::function<void(MadeRun&, int64_t ranks)>& change) {
  for (const int64_t ranks : {1, 2, 4}) {
    MadeRun made;
    made.ranks(ranks);
    made.tokens = 1000 * ranks;
    change(made, ranks);
    made.write(concat(name, "-", ranks));
  }
}

}  // namespace tessera::test
