// SPDX-License-Identifier: MIT
#include "lib/run/run_report.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "lib/core/failure.h"
#include "lib/core/terminal.h"
#include "lib/metrics/console_text.h"
#include "lib/metrics/statistics.h"
#include "lib/run/device_memory.h"
#include "lib/run/layout.h"
#include "lib/run/output.h"
#include "lib/run/step_flops.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

// Where the update ran, for the plan of its memory. With auto the host's part tells: a GPU beside
// which cores update does so at once with them, unless copies would keep the calling thread.
OffloadStep step_of(const OffloadConfig& offload, bool on_gpu, Strategy& strategy) {
  if (offload.step != OffloadStep::kAuto) return offload.step;
  if (strategy.offload_report().update_elements_per_s <= 0) return OffloadStep::kDevice;
  return on_gpu && offload.pin_memory ? OffloadStep::kBoth : OffloadStep::kHost;
}

constexpr double kUnknownWork = -1;

double peak_flops(const RunContext& run) {
  const TrainOptions& o = run.options();
  const at::ScalarType parameter = o.parallel.precision.parameter;
  const std::string dtype =
      parameter == at::kFloat && o.precision.tf32 ? "tf32" : name_of(parameter);
  return metrics::peak_flops_per_second(device_name(run.world.device()).c_str(), dtype.c_str())
      .value_or(0);
}

metrics::RunStartRecord start_record(const RunContext& run, const RunParts& parts,
                                     double peak_flops) {
  const TrainOptions& o = run.options();
  const PrecisionConfig& precision = o.parallel.precision;
  metrics::RunStartRecord r;
  r.argv = run.argv;
  r.flags = run.flags.changed_text();
  if (!r.flags.empty()) r.flags.erase(0, 1);
  r.config = {run.flags.config_json(/*indent=*/0)};
  r.world_size = run.world.size();
  r.dp = parts.mesh->extent(Axis::kData);
  r.tp = parts.mesh->extent(Axis::kTensor);
  r.pp = parts.mesh->extent(Axis::kPipeline);
  r.cp = parts.mesh->extent(Axis::kContext);
  r.global_batch_size = parts.batches->global_batch_size();
  run.task.describe(r, parts.mesh->axis(Axis::kData));
  for (auto& [name, value] : r.settings) {
    if (name == "fp8_layers" && !parts.fp8_layers.empty()) value = parts.fp8_layers;
    if (name == "fp8_all_gather" && parts.fp8_layers == "none") value = false;
  }
  if (peak_flops > 0 && run.task.model().flops_per_token) {
    r.mfu_formula = mfu_formula();
    r.peak_flops_per_second = peak_flops;
  }
  r.parameter_dtype = name_of(precision.parameter);
  r.gradient_dtype = name_of(precision.gradient_dtype());
  r.reduce_dtype = name_of(precision.reduce_dtype());
  r.master_dtype = "fp32";
  r.moment_dtype = name_of(std::optional(o.training.moments()));
  r.model = run.task.model().name;
  r.num_parameters = parts.strategy->parameter_count();
  r.num_trainable_parameters = parameter_count(run.task.model()).trained;
  if (!parts.recomputation.empty()) {
    for (const StageRecomputation& stage : parts.recomputation) {
      r.recomputed_by_stage +=
          concat(r.recomputed_by_stage.empty() ? "" : ",", stage.blocks.size());
    }
    r.recomputed_blocks = std::ssize(blocks_of(parts.recomputation));
    r.activation_limit_bytes = static_cast<int64_t>(least_allowed(parts.recomputation));
  }
  r.num_train_samples = run.task.training_rows();
  r.num_train_steps = parts.total_steps;
  r.seed = o.training.seed;
  r.device = device_name(run.world.device());
  r.transport = run.world.transport();
  r.launcher = run.launch.launcher;
  fill_versions(r);
  return r;
}

std::optional<PlannedLayout> layout_of(const std::optional<RunPlanner::CheckedLayout>& checked) {
  return checked ? std::optional(checked->layout) : std::nullopt;
}

// Lines that the console prints at the start beside the record.
std::vector<std::pair<std::string, std::string>> found_rows(const RunContext& run,
                                                            const RunParts& parts) {
  std::vector<std::pair<std::string, std::string>> rows;
  if (run.task.validation_rows() > 0) {
    rows.emplace_back("eval", concat(run.task.validation_rows(), " rows"));
  }
  if (parts.checked) {
    std::string need = parts.checked->need;
    if (need.starts_with("One ")) need[0] = 'o';
    rows.emplace_back("memory", "planned: " + need);
  }
  rows.emplace_back("files", run.options().output.output_dir);
  return rows;
}

std::string for_shell(const std::string& path) {
  const bool plain = path.find_first_of(" \t\"'$&|;()<>*?`\\") == std::string::npos;
  return plain ? path : concat("'", path, "'");
}

// Paths of the run's files and commands that read them; also of the trained model if it was
// written.
std::vector<metrics::TextRow> next_steps(const RunTask& task, int exit_code) {
  const TrainOptions& o = task.options();
  const std::string directory = for_shell(o.output.output_dir);
  const bool has_model = exit_code == 0 && o.output.save_final;
  std::vector<metrics::TextRow> rows{
      {"files", concat(directory, has_model ? "  (the model: final/)" : "")},
      {"report", "tessera-report " + directory}};
  if (!has_model || task.program() == Program::kOwn) return rows;
  const std::string model = for_shell(o.output.output_dir + "/final");
  const bool classifies = task.program() == Program::kClassification,
             adapts = task.adapter() != nullptr;
  if (!classifies && !(adapts && o.model.directory.empty())) {
    rows.push_back({"generate", concat("tessera-generate --model ",
                                       adapts ? for_shell(o.model.directory) + " --adapter " : "",
                                       model, task.program() == Program::kChat ? " --chat" : "")});
  }
  rows.push_back({"Python", concat(adapts ? "AutoPeftModelFor" : "AutoModelFor",
                                   classifies ? "SequenceClassification" : "CausalLM",
                                   ".from_pretrained(\"", o.output.output_dir, "/final\")")});
  return rows;
}

}  // namespace

RunReport::RunReport(const RunContext& run, const RunParts& parts)
    : run_(run),
      parts_(parts),
      peak_flops_(peak_flops(run)),
      memory_(*parts.mesh, layout_of(parts.checked)) {}

void RunReport::open() {
  const TrainOptions& o = run_.options();
  if (run_.reports()) {
    check(run_.output_lock != nullptr, ErrorCode::kInternal, "rank 0 has not locked ",
          o.output.output_dir);
    prepare_output_directory(o, *run_.output_lock);
    write_text_file(o.output.output_dir + "/config.json", run_.flags.config_json() + "\n");
    const int64_t logging_steps = o.output.logging_steps.of(parts_.total_steps);
    recorder_ = std::make_unique<metrics::Recorder>(
        make_sinks(o, logging_steps, found_rows(run_, parts_)), logging_steps);
    recorder_->start(start_record(run_, parts_, peak_flops_));
    senders_ = std::make_unique<MetricsSenders>(o.output);
    for (const metrics::DataRecord& file : run_.task.data_files()) recorder_->data(file);
    if (parts_.resumed) {
      const std::string& from = parts_.resumed->path;
      recorder_->checkpoint({.path = from, .restored_from = from});
    }
  }
  resources_.emplace(run_, recorder_.get());  // no rank trains when rank 0 cannot write
  if (run_.world.size() > 1) rank_times_.emplace(run_.world);
}

void RunReport::step_begins(const std::vector<MicroBatch>& micro_batches) {
  issued_.push_back({bytes_sent(*parts_.mesh, *parts_.strategy), mean_row_length(micro_batches)});
  memory_.next(micro_batches);
}

metrics::StepRecord RunReport::record_of(const StepReport& report, const Issued& issued) const {
  const int64_t sent =
      issued_.empty() ? bytes_sent(*parts_.mesh, *parts_.strategy) : issued_.front().sent_before;
  const DeviceMemory memory = memory_.device_peak();
  metrics::StepRecord r;
  r.step = report.step;
  r.epoch = parts_.epoch();
  r.loss = report.loss;
  r.learning_rate = report.learning_rate;
  r.grad_norm = report.grad_norm;
  r.clip_coefficient = report.clip_coefficient;
  if (run_.options().parallel.precision.parameter == at::kHalf) r.loss_scale = report.loss_scale;
  r.skipped = report.skipped;
  r.step_time_s = report.step_time_s;
  r.data_time_s = report.data_time_s;
  r.samples = report.samples;
  r.tokens = report.tokens;
  r.supervised_tokens = static_cast<int64_t>(report.target_count);
  r.comm_bytes = sent - issued.sent_before;
  r.gpu_mem_allocated_bytes = memory.allocated_peak_bytes;
  r.gpu_mem_reserved_bytes = memory.reserved_peak_bytes;
  const ModelSpec& model = run_.task.model();
  if (peak_flops_ > 0 && model.flops_per_token && report.tokens > 0 && r.step_time_s > 0) {
    const auto positions = static_cast<double>(report.tokens);
    const double flops = step_flops(model, positions, report.target_count, issued.row_length);
    r.mfu_ratio = metrics::mfu_ratio(flops / positions, positions / r.step_time_s, peak_flops_,
                                     run_.world.size());
  }
  if (report.phases) {
    r.forward_s = report.phases->forward_s;
    r.backward_s = report.phases->backward_s;
    r.comm_exposed_s = report.phases->communication_s;
    r.optimizer_s = report.phases->optimizer_s;
    r.h2d_d2h_s = report.phases->copies_s;
  }
  metrics::add_expert_load(report.counters, run_.task.counted_experts(), r);
  return r;
}

void RunReport::step(const StepReport& report) {
  const Issued issued = issued_.front();
  issued_.pop_front();
  const metrics::StepRecord record = record_of(report, issued);
  if (recorder_) {
    const auto starving =
        starving_watch_.add(report.counters, run_.task.counted_experts(), report.step);
    if (starving) recorder_->anomaly({.kind = "starving_expert", .detail = *starving});
  }
  if (!rank_times_ || !run_.on_gpu()) {
    return write(record, rank_times_ ? rank_times_->read() : std::vector<double>());
  }
  // On GPUs the ranks' work times are known at the next step's report.
  if (held_) write(*held_, rank_times_->read());
  held_ = record;
  tell_work(report);
}

void RunReport::between_steps(const StepReport& latest) {
  if (rank_times_ && !run_.on_gpu()) tell_work(latest);
}

void RunReport::steps_end() {
  if (held_) write(*std::exchange(held_, {}), rank_times_->read());
}

void RunReport::tell_work(const StepReport& step) {
  rank_times_->tell(step.phases ? step.phases->step_s - step.phases->communication_s
                                : kUnknownWork);
}

void RunReport::write(metrics::StepRecord record, const std::vector<double>& work_s) {
  if (!recorder_) return;
  if (!work_s.empty() && !std::ranges::count(work_s, kUnknownWork)) {
    record.slowest_rank = std::ranges::max_element(work_s) - work_s.begin();
    note_straggler(work_s, record.step);
  }
  recorder_->step(record);
}

// Not for pipelines, whose stages differ in work by layout.
void RunReport::note_straggler(const std::vector<double>& work_s, int64_t step) {
  if (parts_.mesh->extent(Axis::kPipeline) > 1) return;
  const auto straggler = straggler_watch_.add(work_s);
  if (!straggler) return;
  recorder_->anomaly({.kind = "straggler",
                      .detail = concat("rank ", straggler->rank, " worked ", straggler->ratio,
                                       " times as long as the median of the others in step ", step,
                                       ", and was slow in the 9 before"),
                      .rank_culprit = straggler->rank});
}

void RunReport::evaluation(const metrics::EvalRecord& record) {
  if (recorder_) recorder_->eval(record);
}

void RunReport::checkpoints(const std::vector<SavedCheckpoint>& saved) {
  for (const SavedCheckpoint& one : saved) {
    if (!recorder_) return;
    recorder_->checkpoint({.path = one.path,
                           .bytes = one.bytes,
                           .write_s = one.write_s,
                           .stall_s = one.stall_s,
                           .waited_s = one.waited_s});
  }
}

void RunReport::end_of_training() {
  resources_->end_of_training();
  if (recorder_) recorder_->end_of_training();
}

void RunReport::finish(int exit_code, const std::optional<std::string>& hash) {
  const Strategy& strategy = *parts_.strategy;
  const OffloadStep step =
      step_of(run_.options().parallel.offload, run_.on_gpu(), *parts_.strategy);
  const StrategyMemory held = strategy.memory();
  const std::vector<MemoryLine> lines = memory_.lines(held, step, run_.control);
  const DeviceMemory memory = memory_.device_peak();
  const std::vector<int64_t> peaks = largest_over_ranks(
      run_.control, {memory.allocated_peak_bytes.value_or(-1),
                     memory.reserved_peak_bytes.value_or(-1), held.host_bytes, held.pinned_bytes});
  metrics::RunEndInfo info{.exit_code = exit_code, .param_hash_final = hash};
  resources_->gather(info);
  if (!recorder_) return;
  resources_->throw_sampling_failure();  // checked after the model is written
  if (peaks[0] >= 0) info.gpu_mem_allocated_peak_bytes = peaks[0];
  if (peaks[1] >= 0) info.gpu_mem_reserved_peak_bytes = peaks[1];
  const char* kinds[] = {"parameter", "gradient", "optimizer", "buffer", "host", "pinned"};
  std::vector<int64_t> kept = parts_.memory;
  kept[4] = peaks[2], kept[5] = peaks[3];  // steps make buffers of activations
  for (size_t i = 0; i < std::size(kinds); ++i) {
    info.extra.emplace_back(concat(kinds[i], "_bytes"), kept[i]);
  }
  info.extra.emplace_back("comm_bytes", bytes_sent(*parts_.mesh, strategy));
  for (auto& field : memory_fields(lines, memory_.rank())) info.extra.push_back(field);
  recorder_->finish(info);
  recorder_.reset();
  std::fputs(memory_text(lines, memory_.rank()).c_str(), stdout);
  const bool terminal = writes_to_terminal();
  const std::string rows = metrics::rows_text(next_steps(run_.task, exit_code), /*width=*/0,
                                              terminal && terminal_has_colours());
  std::fputs(rows.c_str(), stdout);
  senders_.reset();
}

void RunReport::fail(const std::exception& error) {
  if (resources_) resources_->drop();
  const std::unique_ptr<MetricsSenders> senders = std::move(senders_);
  if (senders) senders->leave();
  if (!recorder_) return;
  const ErrorCode code = current_failure().code;
  const bool memory = code == ErrorCode::kResourceExhausted;
  try {
    if (held_) recorder_->step(*held_);
    recorder_->anomaly({.kind = memory ? "oom" : error_code_name(code), .detail = error.what()});
    recorder_->finish({.exit_code = exit_code(code)});
  } catch (const std::exception&) {
    // The disk may have failed; the first error is the one to report.
  }
}

}  // namespace tessera::programs
