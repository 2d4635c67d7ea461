// SPDX-License-Identifier: MIT
#include "lib/run/run_memory.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "lib/core/device_driver.h"
#include "lib/core/integer_of.h"
#include "lib/core/number_text.h"
#include "lib/core/units.h"
#include "lib/metrics/resource_sampler.h"
#include "lib/metrics/table.h"
#include "lib/plan/memory_plan.h"
#include "lib/run/device_memory.h"
#include "lib/run/layout.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

constexpr double kUnknown = -1;

Card card_of(at::Device device) {
  if (device.is_cpu()) return card_named("cpu");
  const auto known = card_of_device(programs::device_name(device));
  return known ? *known : card_named("h100");  // for the driver's memory
}

// Bytes of this device in use by any process, from the driver.
std::optional<int64_t> used_bytes(at::Device device) {
  const metrics::GpuMonitor monitor({pci_address(device)});
  return monitor.gpus().empty() ? std::nullopt : monitor.read(0).memory_used_bytes;
}

double or_unknown(const std::optional<int64_t>& bytes) {
  return bytes ? static_cast<double>(*bytes) : kUnknown;
}

const MemoryLine& allocated(const std::vector<MemoryLine>& lines) {
  return *std::ranges::find(lines, "allocated", &MemoryLine::name);
}

}  // namespace

RunMemory::RunMemory(const DeviceMesh& mesh, std::optional<PlannedLayout> layout)
    : mesh_(mesh), device_(mesh.world().device()), layout_(std::move(layout)) {}

void RunMemory::begin(Activity work) {
  work_ = work;
  if (device_.is_cpu()) counter_.emplace();
  ended_ = device_peak();
  reset_device_peak(device_);
  begin_bytes_ = 0;
}

// Call before the model is gathered and written, which needs more memory.
void RunMemory::end() {
  note_peak();
  counter_.reset();
  if (work_ == Activity::kSteps) used_ = or_unknown(used_bytes(device_));
}

void RunMemory::note_peak() {
  if (!device_.is_cpu()) {
    now().peak = std::max(now().peak, or_unknown(device_memory(device_).allocated_peak_bytes));
  }
  if (!counter_) return;
  now().peak = std::max(now().peak,
                        static_cast<double>(counter_->use().peak_allocated_bytes - begin_bytes_));
  counter_->reset_peak();
  begin_bytes_ = counter_->use().allocated_bytes;
}

DeviceMemory RunMemory::device_peak() const {
  const DeviceMemory now = device_memory(device_);
  return {std::max(now.allocated_peak_bytes, ended_.allocated_peak_bytes),
          std::max(now.reserved_peak_bytes, ended_.reserved_peak_bytes)};
}

void RunMemory::next(const BatchShape& shape) {
  note_peak();
  add(shape, shape.rows * shape.length);
}

void RunMemory::next(std::span<const MicroBatch> micro_batches) {
  note_peak();
  for (const MicroBatch& batch : micro_batches) add(shape_of(batch), batch.token_count);
}

// For equal sizes the one with more head rows, or with all of them.
void RunMemory::add(const BatchShape& shape, int64_t tokens) {
  Watched& work = now();
  const bool varies = work.largest.varies || (work.tokens > 0 && tokens != work.tokens);
  const BatchShape& most = work.largest;
  const bool larger =
      tokens > work.tokens || (tokens == work.tokens && most.head_rows > 0 &&
                               (shape.head_rows == 0 || shape.head_rows > most.head_rows));
  if (larger) {
    work.largest = shape;
    work.tokens = tokens;
  }
  work.largest.varies = varies;
}

std::optional<MemoryPlan> RunMemory::plan(OffloadStep step) const {
  if (!layout_) return std::nullopt;
  PlannedLayout layout = *layout_;
  layout.on_gpu = !device_.is_cpu();
  layout.parallel.offload.step = step;
  BetweenSteps between;
  const auto shape_in = [&](Activity work) {
    return watched(work).tokens > 0 ? std::optional(watched(work).largest) : std::nullopt;
  };
  between.evaluation = shape_in(Activity::kEvaluation);
  between.generation = shape_in(Activity::kGeneration);
  const std::vector<MemoryPlan> stages =
      plan_or_warn(layout, watched(Activity::kSteps).largest, card_of(device_), between);
  if (stages.empty()) return std::nullopt;
  return stages.at(static_cast<size_t>(mesh_.coordinate(Axis::kPipeline)));
}

std::vector<MemoryLine> RunMemory::own_lines(const StrategyMemory& memory, OffloadStep step) const {
  const auto held = static_cast<double>(memory.parameter_bytes + memory.gradient_bytes +
                                        memory.optimizer_bytes + memory.buffer_bytes);
  const auto peak_in = [&](Activity work) {
    const double peak = watched(work).peak;
    return peak < 0 ? kUnknown : peak + (device_.is_cpu() ? held : 0);
  };
  const double peak = peak_in(Activity::kSteps);
  std::vector<MemoryLine> lines{
      {"parameter", kUnknown, static_cast<double>(memory.parameter_bytes)},
      {"gradient", kUnknown, static_cast<double>(memory.gradient_bytes)},
      {"optimizer", kUnknown, static_cast<double>(memory.optimizer_bytes)},
      {"buffer", kUnknown, static_cast<double>(memory.buffer_bytes)},
      {"activation", kUnknown, peak - held},
      {"allocated", kUnknown, peak},
      {"evaluation", kUnknown, peak_in(Activity::kEvaluation)},
      {"generation", kUnknown, peak_in(Activity::kGeneration)},
      {"device_used", kUnknown, used_},
      {"host", kUnknown, static_cast<double>(memory.host_bytes)},
  };
  const auto planned = plan(step);
  if (!planned) return lines;
  const StateMemory& state = planned->state;
  // On the CPU another thread makes batches, which are not counted.
  const auto running = [&](const Activations& pass) {
    return pass.total() + planned->workspace - (device_.is_cpu() ? pass.inputs : 0);
  };
  const auto allocated_in = [&](Activity work, const Activations& pass) {
    return watched(work).tokens > 0 ? state.device_bytes() + running(pass) : kUnknown;
  };
  const double bytes[] = {state.parameter_bytes,
                          state.gradient_bytes,
                          state.optimizer_bytes,
                          state.buffer_bytes,
                          running(planned->activations),
                          state.device_bytes() + running(planned->activations),
                          allocated_in(Activity::kEvaluation, planned->evaluation),
                          allocated_in(Activity::kGeneration, planned->generation),
                          device_.is_cpu() ? kUnknown : planned->device_bytes(),
                          state.host_bytes};
  for (size_t i = 0; i < lines.size(); ++i) lines[i].plan = bytes[i];
  return lines;
}

std::vector<MemoryLine> RunMemory::lines(const StrategyMemory& memory, OffloadStep step,
                                         ControlChannel& control) {
  const std::vector<MemoryLine> own = own_lines(memory, step);
  std::vector<double> values;
  for (const MemoryLine& line : own) values.insert(values.end(), {line.plan, line.measured});
  const std::string bytes(reinterpret_cast<const char*>(values.data()),
                          values.size() * sizeof(double));
  std::vector<MemoryLine> most;
  const std::vector<std::string> all = control.exchange(bytes);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::copy_n(all[rank].data(), bytes.size(), reinterpret_cast<char*>(values.data()));
    std::vector<MemoryLine> lines = own;
    for (size_t i = 0; i < lines.size(); ++i) {
      lines[i].plan = values[2 * i];
      lines[i].measured = values[2 * i + 1];
    }
    if (!most.empty() && allocated(lines).measured <= allocated(most).measured) continue;
    most = std::move(lines);
    rank_ = static_cast<int>(rank);
  }
  if (control.rank() != 0) most.clear();
  return most;
}

std::string memory_text(const std::vector<MemoryLine>& lines, int rank) {
  if (lines.empty() || allocated(lines).plan < 0) return "";
  const auto number = [](const char* title) -> metrics::Column {
    return {.title = title, .decimals = 1, .thousands = false, .width = 12};
  };
  metrics::Table table{.columns = {{.title = concat("  memory of rank ", rank, ", MiB"),
                                    .is_text = true,
                                    .width = 26},
                                   number("plan"),
                                   number("measured"),
                                   number("difference"),
                                   {.is_text = true}},
                       .unknown = ""};
  table.columns[3].sign = true;
  for (const auto& [name, plan, measured] : lines) {
    if (std::min(plan, measured) < 0 || std::max(plan, measured) == 0) continue;
    const std::string share =
        plan > 0 ? printed("%+6.1f %%", 100 * (measured / plan - 1)) : std::string();
    table.rows.push_back({{.text = "    " + name},
                          {.number = plan / kMiB},
                          {.number = measured / kMiB},
                          {.number = (measured - plan) / kMiB},
                          {.text = without_negative_zero(share, /*signs=*/true)}});
  }
  return metrics::text_table(table, {.between = 1});
}

metrics::Fields memory_fields(const std::vector<MemoryLine>& lines, int rank) {
  const auto value = [](double bytes) {
    return bytes < 0 ? metrics::Value() : metrics::Value(integer_of(bytes));
  };
  metrics::Fields fields{{"plan_rank", static_cast<int64_t>(rank)}};
  for (const auto& [name, plan, measured] : lines) {
    fields.emplace_back("plan_" + name + "_bytes", value(plan));
    fields.emplace_back("measured_" + name + "_bytes", value(measured));
  }
  return fields;
}

}  // namespace tessera::programs
