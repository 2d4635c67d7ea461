// How a run ends: the exported model, the summary, or what went wrong.
#include <cstdio>
#include <exception>
#include <filesystem>

#include "lib/core/failure.h"
#include "lib/core/host_memory.h"
#include "lib/run/device_memory.h"
#include "lib/run/export.h"
#include "lib/run/layout.h"
#include "lib/run/memory_advice.h"
#include "lib/run/training_run.h"
#include "tessera/core/error.h"

namespace tessera::programs {

void TrainingRun::end_training() {
  if (sampler_) sampling_failure_ = sampler_->stop();
  sampler_.reset();
  pinned_peak_ = pinned_memory().peak_bytes;
  if (recorder_) recorder_->end_of_training();
}

std::string TrainingRun::export_final() {
  if (reports() && options_.save_final && continues_in_place(options_)) {
    std::error_code error;
    std::filesystem::remove_all(options_.output_dir + "/final", error);
  }
  return write_final(prepared_, *strategy_, reports());
}

void TrainingRun::finish(int exit_code, const std::optional<std::string>& hash) {
  // Only there the host's cores update.
  const OffloadStep step = strategy_->offload_report().update_elements_per_s > 0
                               ? OffloadStep::kHost
                               : OffloadStep::kDevice;
  const std::vector<MemoryLine> lines = run_memory_->lines(strategy_->memory(), step, control_);
  const DeviceMemory memory = run_memory_->device_peak();
  const std::vector<int64_t> peaks = largest_over_ranks(
      {memory.allocated_peak_bytes.value_or(-1), memory.reserved_peak_bytes.value_or(-1)});
  metrics::RunEndInfo info{.exit_code = exit_code, .param_hash_final = hash};
  gather_resources(info);
  if (!reports()) return;
  // Now that the model is written.
  if (sampling_failure_) std::rethrow_exception(sampling_failure_);
  if (peaks[0] >= 0) info.gpu_mem_allocated_peak_bytes = peaks[0];
  if (peaks[1] >= 0) info.gpu_mem_reserved_peak_bytes = peaks[1];
  const char* kinds[] = {"parameter", "gradient", "optimizer", "buffer", "host", "pinned"};
  for (size_t i = 0; i < std::size(kinds); ++i) {
    info.extra.emplace_back(concat(kinds[i], "_bytes"), memory_[i]);
  }
  info.extra.emplace_back("comm_bytes", bytes_sent(*mesh_, *strategy_));
  for (auto& field : memory_fields(lines, run_memory_->rank())) info.extra.push_back(field);
  recorder_->finish(info);
  recorder_.reset();
  std::fputs(memory_text(lines, run_memory_->rank()).c_str(), stdout);
  std::printf("results are in %s\n", options_.output_dir.c_str());
}

// A run that has begun to write says how it ended; no collective may be used here.
void TrainingRun::record_failure(const std::exception& error) {
  sampler_.reset();
  if (recorder_ == nullptr) return;
  const ErrorCode code = current_failure().code;
  const bool memory = code == ErrorCode::kResourceExhausted;
  try {
    if (held_) recorder_->step(*held_);
    recorder_->anomaly({.kind = memory ? "oom" : error_code_name(code), .detail = error.what()});
    recorder_->finish({.exit_code = exit_code(code)});
  } catch (const std::exception&) {
    // The disk may be what failed; the first error is the one to report.
  }
}

}  // namespace tessera::programs
