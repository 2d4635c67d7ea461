// SPDX-License-Identifier: MIT
#include "lib/run/training_run.h"

#include <optional>

#include "lib/core/failure.h"
#include "lib/run/export.h"
#include "lib/run/run_planner.h"
#include "lib/run/training.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera::programs {
namespace {

constexpr int kInterrupted = 130;  // exit status of a shell for SIGINT

// Checks that all ranks have the same flags and data.
void agree(const RunContext& run) {
  require_same_on_all_ranks(run.control, "the list of flags", run.flags.values_text());
  for (const auto& [what, value] : run.task.inputs()) {
    require_same_on_all_ranks(run.control, what, value);
  }
}

std::string memory_advice(const RunContext& run, const RunParts* parts, const char* reason) {
  const RunPlanner* planner = run.task.planner();
  if (planner == nullptr) return advice_without_plan(reason);
  const auto recomputed = parts ? blocks_of(parts->recomputation) : std::vector<int64_t>{};
  return planner->memory_advice(run.world.size(), reason, run.on_gpu(), recomputed);
}

int finish(const RunContext& run, const RunParts& parts, RunReport& report, Training& training,
           bool interrupted) {
  report.end_of_training();
  if (!interrupted) {
    report.finish(0, write_final(run.task, *parts.strategy, run.reports()));
    return 0;
  }
  report.finish(kInterrupted, std::nullopt);
  if (run.reports()) log(LogLevel::kWarning, training.how_it_stopped("Ctrl-C"));
  return kInterrupted;
}

}  // namespace

int execute(const RunContext& run) {
  std::unique_ptr<RunParts> parts;
  std::optional<RunReport> report;
  try {
    agree(run);
    parts = plan_run(run);
    describe(run, *parts);
    if (run.options().run.dry_run) return 0;
    build(run, *parts);
    report.emplace(run, *parts);
    report->open();
    open_checkpoints(run, *parts);
    reset_device_peak(run.world.device());
    Training training(run, *parts, *report);
    const bool interrupted = training.run();
    return finish(run, *parts, *report, training, interrupted);
  } catch (const Error& error) {
    if (report) report->fail(error);
    throw;
  } catch (const std::exception& error) {
    if (report) report->fail(error);
    if (!is_out_of_memory(error)) throw;
    fail(ErrorCode::kResourceExhausted, memory_advice(run, parts.get(), error.what()));
  }
}

}  // namespace tessera::programs
