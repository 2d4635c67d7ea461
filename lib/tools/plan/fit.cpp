// SPDX-License-Identifier: MIT
#include "lib/tools/plan/fit.h"

#include <algorithm>
#include <cstdio>

#include "backends/check_config.h"
#include "backends/strategy_kinds.h"
#include "lib/core/number_text.h"
#include "lib/core/units.h"
#include "lib/metrics/table.h"
#include "lib/plan/equal_passes.h"
#include "lib/run/layout.h"
#include "lib/tools/plan/longest_row.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera::programs {
namespace {

constexpr size_t kShown = 3;

std::string flags_of(const TrainOptions& o) {
  std::string text = "--strategy " + o.parallel.strategy;
  const auto add = [&](const char* name, int64_t value, int64_t usual) {
    if (value != usual) text += concat(" --", name, " ", value);
  };
  add("tensor_parallel", o.axes.tensor, 1);
  add("pipeline_parallel", o.axes.pipeline, 1);
  add("context_parallel", o.axes.context, 1);
  add("expert_parallel", o.axes.expert, 1);
  if (const std::string offload = offload_name(o.parallel); offload != "none")
    text += " --offload " + offload;
  if (!o.memory.offload_gpu.empty() && o.parallel.offload.what == Offload::kOptimizer)
    text += " --offload_keep_on_gpu " + o.memory.offload_gpu;
  if (o.parallel.gradient_checkpointing) text += " --gradient_checkpointing";
  if (!o.memory.activations.empty()) text += " --activation_memory " + o.memory.activations;
  return text + concat(" --per_device_train_batch_size ", o.training.per_device_train_batch_size,
                       " --gradient_accumulation_steps ", o.training.gradient_accumulation_steps);
}

std::vector<int64_t> divisors(int64_t number, int64_t most) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= std::min(number, most); ++d) {
    if (number % d == 0) all.push_back(d);
  }
  return all;
}

// Layouts of the model, simple ones first.
std::vector<TrainOptions> spreads(const TrainOptions& options, const PlannedHosts& hosts) {
  std::vector<TrainOptions> all;
  const bool gpu = !hosts.card.device.empty();
  const int64_t context = options.axes.context, ranks = hosts.ranks / context;  // as it was given
  for (const int64_t tensor : divisors(ranks, std::min<int64_t>(8, hosts.ranks_of_host))) {
    for (const int64_t stages : divisors(ranks / tensor, 16)) {
      const int64_t data = ranks / tensor / stages;
      std::vector<std::string> strategies{plain_strategy(data * context)};
      for (const StrategyKind zero : kZeroStages) {
        if (data * context > 1) strategies.push_back(name_of(zero));
      }
      for (const std::string& strategy : strategies) {
        for (const auto& [name, parts] : kOffloads) {
          const auto [offload, activations] = parts;
          if (activations) continue;  // candidates() adds them to recomputation
          TrainOptions o = options;
          o.parallel.strategy = strategy;
          o.parallel.offload.what = offload;
          o.parallel.offload.activations = false;
          o.axes.tensor = tensor;
          o.axes.pipeline = stages;
          o.parallel.sequence_parallel = options.parallel.sequence_parallel && tensor > 1;
          if (offload != Offload::kNone && !gpu) continue;
          if (offload != Offload::kNone && data == 1) {
            o.parallel.strategy = name_of(offload == Offload::kOptimizer ? StrategyKind::kZero2
                                                                         : StrategyKind::kZero3);
          }
          const ParallelConfig spread{.strategy = o.parallel.strategy,
                                      .offload = o.parallel.offload};
          if (is_legal(spread, {.data = static_cast<int>(data),
                                .tensor = static_cast<int>(tensor),
                                .context = static_cast<int>(context),
                                .expert = static_cast<int>(options.axes.expert)}))
            all.push_back(o);
        }
      }
    }
  }
  return all;
}

// All micro-batch sizes with the same global batch.
std::vector<TrainOptions> candidates(const TrainOptions& options, const PlannedHosts& hosts,
                                     int64_t global_batch) {
  std::vector<TrainOptions> all;
  for (const TrainOptions& spread : spreads(options, hosts)) {
    const int64_t data = hosts.ranks / spread.axes.sharers();
    if (global_batch % data != 0) continue;
    const int64_t rows = global_batch / data;
    for (const int64_t micro : divisors(rows, rows)) {
      if ((micro & (micro - 1)) != 0 && micro != rows) continue;  // powers of two
      // --activation_memory chooses blocks itself
      const bool chosen = !options.memory.activations.empty();
      const auto add = [&](bool recompute, bool offload) {
        TrainOptions o = spread;
        o.training.per_device_train_batch_size = micro;
        o.training.gradient_accumulation_steps = rows / micro;
        o.parallel.gradient_checkpointing = recompute;
        o.parallel.offload.activations = offload;
        all.push_back(o);
      };
      add(/*recompute=*/false, /*offload=*/false);
      if (!chosen) add(/*recompute=*/true, /*offload=*/false);
      const bool offloads = !hosts.card.device.empty() && options.axes.expert == 1;
      if (offloads) add(/*recompute=*/!chosen, /*offload=*/true);
    }
  }
  return all;
}

std::string whole_mebibytes(double bytes) {
  return with_thousands(printed("%.0f", bytes / kMiB)) + " MiB";
}

std::string lines_of(const std::vector<Candidate>& candidates) {
  metrics::Table table{.columns = {{.width = 21}, {.width = 20}, {.width = 13}, {.is_text = true}}};
  const auto number = [](const char* form, double value) {
    return with_thousands(printed(form, value));
  };
  for (const Candidate& candidate : candidates) {
    const double ms = candidate.run.time.total() * 1e3;
    table.rows.push_back({{.text = number("%.1f", ms) + " ms a step"},
                          {.text = number("%.0f", candidate.run.tokens_per_s) + " tokens/s"},
                          {.text = whole_mebibytes(candidate.needed)},
                          {.text = candidate.flags}});
  }
  return metrics::text_table(table, {.titles = false});
}

// The candidate is the one that needs least with one row a micro-batch.
void add_longest_row(Fit& fit, const Prepared& model, const std::vector<Candidate>& all,
                     const PlannedHosts& hosts, const std::shared_ptr<EqualPasses>& passes) {
  const Candidate* least = nullptr;
  for (const Candidate& candidate : all) {
    if (candidate.run.options.training.per_device_train_batch_size != 1) continue;
    if (least == nullptr || candidate.needed < least->needed) least = &candidate;
  }
  if (least == nullptr) return;
  fit.longest_row = longest_row(model, least->run.options, hosts, passes);
  fit.longest_row_flags = least->flags;
  if (fit.longest_row == 0) return;
  TrainOptions o = least->run.options;
  o.data.max_seq_length = fit.longest_row;
  for (const MemoryPlan& stage : plan_run(model, o, hosts, passes).stages) {
    fit.longest_row_host_bytes = std::max(fit.longest_row_host_bytes, stage.state.host_bytes);
  }
}

std::string longest_row_text(const Fit& fit) {
  if (fit.longest_row == 0) return "";
  return concat(
      "longest row: ", with_thousands(std::to_string(fit.longest_row)), " tokens, by ",
      fit.longest_row_flags,
      fit.longest_row_host_bytes > 0
          ? concat("; ", whole_mebibytes(fit.longest_row_host_bytes), " of a rank on its host")
          : std::string(),
      "\n");
}

}  // namespace

// [Note: stages of a fit]
// The first stage determines a layout's traffic and, except for what other stages hold in excess,
// its step time. Other stages of a pipeline are planned only where the layout may win: those that
// are faster and whose first stage fits.
Fit find_fit(const Prepared& model, const TrainOptions& options, const PlannedHosts& hosts) {
  const int64_t global_batch =
      options.global_batch_size(mesh_extents(options, static_cast<int>(hosts.ranks)).data);
  const auto passes = std::make_shared<EqualPasses>();
  std::vector<Candidate> all;
  std::string problem;
  for (const TrainOptions& o : candidates(options, hosts, global_batch)) {
    try {
      Candidate candidate{.run = plan_run(model, o, hosts, passes, /*stages=*/1),
                          .flags = flags_of(o)};
      candidate.needed = candidate.run.largest(hosts.card).needed(hosts.card);
      all.push_back(std::move(candidate));
    } catch (const Error& error) {  // some models cannot be partitioned in this way
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      problem = error.what();
    }
  }
  check(!all.empty(), ErrorCode::kInvalidArgument, "no layout is possible on ", hosts.ranks,
        " rank(s): ", problem);
  const auto plan_all_stages = [&](Candidate& candidate) {
    if (std::ssize(candidate.run.stages) == candidate.run.mesh.pipeline) return;
    candidate.run = plan_run(model, candidate.run.options, hosts, passes);
    candidate.needed = candidate.run.largest(hosts.card).needed(hosts.card);
  };
  Fit fit{.tried = static_cast<int64_t>(all.size())};
  add_longest_row(fit, model, all, hosts, passes);
  // Equally fast layouts are ordered by memory.
  std::ranges::sort(all, [](const Candidate& a, const Candidate& b) {
    const double x = a.run.time.total(), y = b.run.time.total();
    return std::abs(x - y) > 1e-3 * y ? x < y : a.needed < b.needed;
  });
  const auto best = std::ranges::find_if(all, [&](Candidate& candidate) {
    if (candidate.run.fits(hosts.card)) plan_all_stages(candidate);
    return candidate.run.fits(hosts.card);
  });
  std::vector<Candidate> others(all.begin(), best);
  if (best == all.end()) {
    std::ranges::for_each(others, plan_all_stages);
    std::ranges::sort(others, {}, &Candidate::needed);
  } else {
    fit.fits = {*best};
  }
  others.resize(std::min(others.size(), kShown));
  std::ranges::for_each(others, plan_all_stages);
  fit.faster = std::move(others);
  return fit;
}

std::string fit_text(const Fit& fit, const PlannedHosts& hosts) {
  std::string text;
  if (!fit.fits.empty()) {
    text += concat("fastest of ", fit.tried, " layouts that fits into ",
                   whole_mebibytes(hosts.card.memory_bytes), ":\n", lines_of(fit.fits));
  }
  if (fit.faster.empty()) return text + longest_row_text(fit);
  text += fit.fits.empty()
              ? concat("none of ", fit.tried, " layouts fits into ",
                       whole_mebibytes(hosts.card.memory_bytes), "; least is needed by:\n")
              : std::string("faster, but they need more:\n");
  return text + lines_of(fit.faster) + longest_row_text(fit);
}

std::string fit_json(const Fit& fit, const PlannedHosts& hosts) {
  JsonWriter json(2);
  const auto list = [&](const char* name, const std::vector<Candidate>& candidates) {
    json.key(name).begin_array();
    for (const Candidate& candidate : candidates) {
      json.begin_object()
          .field("flags", candidate.flags)
          .field("step_time_s", candidate.run.time.total())
          .field("tokens_per_second", candidate.run.tokens_per_s)
          .field("needed_bytes", candidate.needed)
          .end_object();
    }
    json.end_array();
  };
  json.begin_object()
      .field("card", hosts.card.name)
      .field("card_bytes", hosts.card.memory_bytes)
      .field("tried", fit.tried);
  list("fits", fit.fits);
  list(fit.fits.empty() ? "least" : "faster", fit.faster);
  json.field("longest_row", fit.longest_row)
      .field("longest_row_flags", fit.longest_row_flags)
      .field("longest_row_host_bytes", fit.longest_row_host_bytes);
  return json.end_object().text() + "\n";
}

}  // namespace tessera::programs
