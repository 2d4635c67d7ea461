// SPDX-License-Identifier: MIT
#include "lib/run/training_run.h"

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "lib/checkpoint/expert_files.h"
#include "lib/comm/operation_scope.h"
#include "lib/core/failure.h"
#include "lib/run/parameter_hash.h"
#include "lib/run/run_checkpoints.h"
#include "lib/run/run_planner.h"
#include "lib/run/training.h"
#include "lib/settings/layout.h"
#include "tessera/checkpoint/huggingface.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"
#include "tessera/program/stored_names.h"

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

HuggingFaceWriterOptions writer_options(const RunTask& task) {
  HuggingFaceWriterOptions how{.dtype = task.options().parallel.precision.parameter};
  if (task.adapter() != nullptr) how = adapter_writer_options(task.model());
  how.replaces = continues_in_place(task.options());
  return how;
}

// Checks that exactly the names that PEFT expects were written.
void check_names(const ModelSpec& model, std::set<std::string> written) {
  for (const ParameterInfo& parameter : parameters_of(model)) {
    if (!parameter.trained) continue;
    for (const std::string& name : names_in_files(model, parameter)) {
      check(written.erase(name) == 1, ErrorCode::kInternal, "the adapter lacks ", name);
    }
  }
  check(written.empty(), ErrorCode::kInternal, "the adapter holds ", *written.begin(),
        ", which is not trained");
}

// Collective. The writing rank writes <output_dir>/final, a Hugging Face directory or the adapters'
// PEFT one (unless --save_final false). Returns the hash of all parameters in model order; "" on
// other ranks.
std::string write_final(const RunTask& task, Strategy& strategy, bool writes) {
  const InPhase phase("export");
  const AdapterConfig* const adapter = task.adapter();
  std::unique_ptr<HuggingFaceWriter> writer;
  if (writes && task.options().output.save_final) {
    writer = std::make_unique<HuggingFaceWriter>(task.options().output.output_dir + "/final",
                                                 writer_options(task));
  }
  std::set<std::string> written;
  std::string names = task.stored_names();
  if (names.empty()) names = stored_names_by_expert(task.model());
  const Json listed = Json::parse(names.empty() ? "{}" : names, {}, "stored names");
  ParameterHash hash;
  const auto name_of = [&](const VisitedParameter& p) {
    return task.model().stored_name(p.block, p.name);
  };
  strategy.visit_parameters([&](const VisitedParameter& p) {
    if (!writes) return;
    hash.update(p.value);
    if (!writer || (adapter && p.placement.frozen)) return;
    const at::Tensor host = p.value.detach().to(at::kCPU, at::kFloat).contiguous();
    if (const auto stored = listed.find(p.block + "." + p.name)) {
      for (const auto& [name, part] : stored_tensors(*stored, host)) {
        writer->add(name, in_adapter_file(name, part));
        written.insert(name);
      }
      return;
    }
    writer->add(name_of(p), in_adapter_file(name_of(p), host));
    written.insert(name_of(p));
  });
  strategy.visit_buffers([&](const VisitedParameter& p) {
    if (writer && !adapter) writer->add_buffer(name_of(p), p.value);
  });
  if (writer) {
    if (adapter != nullptr) {
      check_names(task.model(), std::move(written));
      writer->add_text("adapter_config.json", adapter->to_json());
    }
    task.add_files(*writer);
    writer->commit();
  }
  return writes ? hash.hex() : "";
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
