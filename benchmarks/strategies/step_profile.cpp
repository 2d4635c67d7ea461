// SPDX-License-Identifier: MIT
#include "benchmarks/strategies/step_profile.h"

#include <ATen/Context.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <optional>
#include <utility>

#include "benchmarks/strategies/profiler.h"
#include "lib/core/clock.h"
#include "lib/metrics/table.h"
#include "lib/plan/card.h"
#include "lib/run/device_memory.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::bench {
namespace {

constexpr int kSteps = 5;

std::string fixed(double number, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, number);
  return text;
}

std::string shortened(const std::string& text, size_t width) {
  return text.size() <= width ? text : text.substr(0, width - 3) + "...";
}

metrics::Column number(const char* title, int decimals, double scale = 1) {
  return {.title = title, .scale = scale, .decimals = decimals, .thousands = false};
}

std::string percent(double part, double whole) {
  return whole > 0 ? fixed(100 * part / whole, 1) + " %" : "-";
}

double rest_s(const StepProfile& profile) {
  return std::max(0.0, profile.profiled_step_s - profile.covered_s);
}

std::string phase_lines(const StepProfile& profile) {
  const StepPhases& phases = profile.phases;
  metrics::Table table{
      .columns = {{.title = "phase", .is_text = true}, number("ms", 2, 1e3), {.title = "share"}}};
  const auto add = [&](const std::string& name, double seconds) {
    table.rows.push_back(
        {{.text = name}, {.number = seconds}, {.text = percent(seconds, phases.step_s)}});
  };
  for (const auto& [name, seconds] : phases.parts) add(name, seconds);
  add("sum", phases.sum_s());
  return metrics::text_table(table);
}

std::string kernel_lines(const StepProfile& profile) {
  metrics::Table table{
      .columns = {{.title = profile.on_gpu ? "kernel" : "operator", .is_text = true},
                  {.title = "operation", .is_text = true},
                  {.title = "calls"},
                  number("ms", 3, 1e3),
                  {.title = "share"},
                  number("GFLOP", 3, 1e-9),
                  number("MB", 2, 1e-6),
                  {.title = "of ceiling"}},
      .unknown = "-"};
  constexpr size_t kWidest = 44;
  for (const KernelRow& row : profile.rows) {
    const int decimals = row.calls < 10 && row.calls != int(row.calls) ? 1 : 0;
    table.rows.push_back({{.text = shortened(row.name, kWidest)},
                          {.text = row.operation},
                          {.text = fixed(row.calls, decimals)},
                          {.number = row.seconds},
                          {.text = percent(row.seconds, profile.profiled_step_s)},
                          {.number = row.flops},
                          {.number = row.bytes},
                          {.text = row.of_ceiling ? percent(*row.of_ceiling, 1) : ""}});
  }
  const double rest = rest_s(profile);
  table.rows.push_back({{.text = profile.on_gpu ? "(no kernel runs)" : "(in no operator)"},
                        {},
                        {},
                        {.number = rest},
                        {.text = percent(rest, profile.profiled_step_s)},
                        {},
                        {},
                        {}});
  return metrics::text_table(table);
}

std::string ceiling_line(const Ceilings& ceilings) {
  if (ceilings.flops_per_s <= 0) return "The ceilings of this device are not known.";
  return concat("Ceilings: matrix products ", fixed(ceilings.flops_per_s / 1e12, 0),
                " TFLOP/s, memory ", fixed(ceilings.bytes_per_s / 1e9, 0), " GB/s.");
}

}  // namespace

std::string profile_text(const StepProfile& profile) {
  const StepPhases& phases = profile.phases;
  std::string text =
      concat("Phases of a step of ", profile.name, ": ", fixed(1e3 * phases.step_s, 2),
             " ms, the mean of ", profile.steps, " steps", profile.ranks > 1 ? " of rank 0" : "",
             "\n", phase_lines(profile));
  text += "Communication is exposed time: what runs beside computation is in the other phases.\n";
  if (phases.copies_s) {
    text +=
        concat("Copies between host and GPU, beside the phases: ", fixed(1e3 * *phases.copies_s, 2),
               " ms.\n");
  }
  const char* what = profile.on_gpu ? "Kernels" : "Operators";
  text +=
      concat("\n", what,
             " of a step with the profiler on: ", fixed(1e3 * profile.profiled_step_s, 2), " ms\n");
  if (profile.rows.empty()) {
    return text + concat("None was recorded. ",
                         profile.on_gpu ? "The driver lets no program profile, or another profiler "
                                          "is at work."
                                        : "Another profiler is at work.");
  }
  text += kernel_lines(profile);
  if (profile.on_gpu) text += "Kernels of several streams run beside each other.\n";
  return text + ceiling_line(profile.ceilings);
}

std::string profile_json(const StepProfile& profile) {
  JsonWriter json;
  const auto number = [&](const char* key, const std::optional<double>& value) {
    json.key(key);
    value ? json.value(*value) : json.null();
  };
  json.begin_object()
      .field("profile", profile.name)
      .field("world", profile.ranks)
      .field("steps", profile.steps)
      .field("step_s", profile.phases.step_s);
  json.key("phases").begin_object();
  for (const auto& [name, seconds] : profile.phases.parts) {
    std::string key = name + "_s";
    std::ranges::replace(key, ' ', '_');
    json.field(key, seconds);
  }
  json.end_object();
  number("copies_s", profile.phases.copies_s);
  json.field("profiled_step_s", profile.profiled_step_s).field("rest_s", rest_s(profile));
  json.key(profile.on_gpu ? "kernels" : "operators").begin_array();
  for (const KernelRow& row : profile.rows) {
    json.begin_object().field("name", row.name).field("operation", row.operation);
    json.field("calls", row.calls).field("s", row.seconds).field("share_ratio", row.share);
    number("flops", row.flops);
    number("bytes", row.bytes);
    number("ceiling_ratio", row.of_ceiling);
    json.end_object();
  }
  json.end_array();
  number("ceiling_flops_per_second", profile.ceilings.flops_per_s > 0
                                         ? std::optional(profile.ceilings.flops_per_s)
                                         : std::nullopt);
  number("ceiling_bytes_per_second", profile.ceilings.bytes_per_s > 0
                                         ? std::optional(profile.ceilings.bytes_per_s)
                                         : std::nullopt);
  return json.end_object().text();
}

Ceilings ceilings_of(const std::string& device_name, at::ScalarType precision) {
  const std::optional<Card> card = card_of_device(device_name);
  if (!card) return {};
  Ceilings ceilings{.flops_per_s = card->product_flops > 0 ? card->product_flops : card->half_flops,
                    .bytes_per_s = card->memory_bytes_per_s};
  if (precision == at::kFloat) {
    const bool tf32 = at::globalContext().allowTF32CuBLAS();
    ceilings.flops_per_s = tf32 ? card->tf32_flops : card->fp32_flops;
  }
  return ceilings;
}

void profile_steps(const ProfiledWork& work) {
  const at::Device device = work.world.device();
  const bool on_gpu = device.is_cuda();
  const auto plain = work.prepare(kSteps + 1), profiled = work.prepare(kSteps);
  std::vector<TimedStep> timed = plain();
  timed.erase(timed.begin());  // follows no step
  if (work.world.rank() != 0) {
    profiled();
    return;
  }
  StepProfile profile{.name = work.name,
                      .ranks = work.world.size(),
                      .steps = kSteps,
                      .on_gpu = on_gpu,
                      .phases = phases_of(timed, on_gpu)};
  Profiler profiler(device);
  const double begin = now_s();
  profiled();
  profile.profiled_step_s = (now_s() - begin) / kSteps;
  const Calls calls = calls_of(profiler.stop(), on_gpu);
  profile.covered_s = calls.covered_s / kSteps;
  profile.ceilings = ceilings_of(programs::device_name(device), work.precision);
  profile.rows = kernel_rows(calls.calls, kSteps, profile.profiled_step_s, profile.ceilings);
  std::cout << profile_text(profile) << "\nTESSERA " << profile_json(profile) << std::endl;
}

}  // namespace tessera::bench
