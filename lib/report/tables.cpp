// SPDX-License-Identifier: MIT
#include "lib/report/tables.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "lib/report/table_builder.h"
#include "lib/settings/options.h"
#include "tessera/core/error.h"

namespace tessera::report {
namespace {

using TablePositions = metrics::MetricField::TablePositions;

struct Maker {
  const char *id, *needs;
  Table (*make)(const Study&);
};
constexpr Maker kMakers[] = {
    {"1", "a run that trained", baseline_table},
    {"2", "a run that sampled its memory", memory_table},
    {"3", "runs with --offload", pinned_table},
    {"4", "several strategies or kinds of --offload", offload_table},
    {"5a", "runs that differ in ranks, with one batch per rank", weak_scaling_table},
    {"5b", "runs that differ in ranks, with one global batch", strong_scaling_table},
    {"6", "several of ddp, zero1, zero2, zero3, or several dtypes of one", dtype_table},
    {"7a", "zero2 and zero3 with the same settings otherwise", stages_by_batch_table},
    {"7b", "zero3 and fsdp with the same settings otherwise", zero_fsdp_table},
    {"7c", "gpipe and 1f1b with the same settings otherwise", schedules_table},
    {"7d", "--offload on several data-parallel degrees or of several kinds",
     offload_by_ranks_table},
    {"7e", "runs that differ in --per_device_train_batch_size at one global batch",
     largest_batch_table}};

bool is_cpu(const Group& group) { return group.text("device").starts_with("cpu"); }

std::string offload_of(const Group& group) {
  const std::string offload = group.text("offload");
  return offload.empty() ? "none" : offload;
}

std::string pinned_of(const Group& group) {
  if (offload_of(group) == "none") return "";
  return group.text("pin_memory") == "true" ? "yes" : "no";
}

std::string data_of(const Group& group) {
  const std::string path = group.text("dataset");
  return path.substr(path.rfind('/') + 1);
}

std::string dtype_of(const Group& group) { return group.text("parameter_dtype"); }

// Evaluation i, from 0: the (lower) median over repeats.
std::optional<double> evaluation(const Group& group, const std::string& key, size_t i) {
  std::vector<double> values;
  for (const Run* run : group.runs) {
    const auto column = run->evaluations.column(key);
    if (i < column.size()) values.push_back(column[i]);
  }
  if (values.empty()) return std::nullopt;
  std::ranges::sort(values);
  return values[(values.size() - 1) / 2];
}

// One column an evaluation; of many only the first, the middle and the last. Slices of the data
// count epochs anew: their columns are named by the step.
void evaluation_columns(TableBuilder& table, const Study& study) {
  size_t most = 0;
  const Run* longest = nullptr;
  for (const Run& run : study.runs) {
    if (run.evaluations.size() > most) longest = &run;
    most = std::max(most, run.evaluations.size());
  }
  if (longest == nullptr) return;
  const std::vector<double> epochs = longest->evaluations.column("epoch"),
                            steps = longest->evaluations.column("step");
  const bool anew = std::ranges::adjacent_find(epochs, std::greater_equal<>()) != epochs.end();
  constexpr size_t kMostColumns = 5;
  std::vector<size_t> shown;
  for (size_t i = 0; i < most; ++i) {
    if (most <= kMostColumns || i == 0 || i == most / 2 || i + 1 == most) shown.push_back(i);
  }
  for (const size_t i : shown) {
    table.number(
        concat("eval_loss_", i + 1),
        anew ? concat("eval loss, step ", number_text(steps[i], 0))
             : concat("eval loss, epoch ", number_text(epochs[i], epochs[i] < 10 ? 2 : 1)),
        [i](const Group& group) { return evaluation(group, "eval_loss", i); }, 1, 4);
  }
}

// The named group, else a comparison's baseline, else one of its references, else the first
// finished.
const Group* baseline_of(const std::vector<Group>& groups, const std::string& name) {
  const Group* baseline = nullptr;
  std::string names;
  for (const Group& group : groups) {
    names += concat(names.empty() ? "" : ", ", group.name);
    const bool named =
        group.name == name || std::ranges::any_of(group.runs, [&](const Run* run) {
          return run->name == name || run->text("exp") == name || run->path.ends_with("/" + name);
        });
    if (baseline == nullptr && named) baseline = &group;
  }
  check(name.empty() || baseline != nullptr, ErrorCode::kInvalidArgument, "--baseline ", name,
        ": no run is called so; there are ", names);
  if (!name.empty()) return baseline;
  for (const Group& group : groups) {
    const auto& parity = group.first().parity;
    if (parity && parity->is_baseline) return &group;
  }
  for (const Group& group : groups) {
    const auto& parity = group.first().parity;
    if (parity && parity->verdict == "reference") return &group;
  }
  for (const Group& group : groups) {
    if (group.finished()) return &group;
  }
  return &groups.front();
}

}  // namespace

Study::Study(std::vector<Run> all, const std::string& baseline_name) : runs(std::move(all)) {
  groups = group_repeats(runs);
  if (groups.empty()) return;
  baseline = baseline_of(groups, baseline_name);
  marks = Marks(groups, baseline->first());
}

std::string Study::marked_name(const Group& group) const {
  const std::string mark = marks.of(group.first());
  return mark.empty() ? group.name : group.name + " [" + mark + "]";
}

std::vector<Table> make_tables(const Study& study, const std::vector<std::string>& wanted) {
  for (const std::string& id : wanted) {
    const bool known = std::ranges::any_of(kMakers, [&](const Maker& maker) {
      return id == maker.id || (id.size() == 1 && maker.id[0] == id[0]);
    });
    check(known, ErrorCode::kInvalidArgument, "--tables: there is no table '", id,
          "'; there are 1 to 7, in parts 5a, 5b and 7a to 7e");
  }
  std::vector<Table> tables;
  for (const Maker& maker : kMakers) {
    const bool named = std::ranges::any_of(wanted, [&](const std::string& id) {
      return id == maker.id || (id.size() == 1 && maker.id[0] == id[0]);
    });
    if (!wanted.empty() && !named) continue;
    Table table = maker.make(study);
    if (table.rows.empty()) {
      if (!named) continue;
      table.notes = {concat("No row: this table needs ", maker.needs, ".")};
    }
    tables.push_back(std::move(table));
  }
  return tables;
}

bool comparable(const metrics::MetricField& field, const Group& a, const Group& b) {
  return std::ranges::all_of(field.more.same,
                             [&](const char* fact) { return a.text(fact) == b.text(fact); });
}

bool compares_gpu_memory(const std::vector<Group>& groups) {
  return std::ranges::any_of(groups, [](const Group& group) {
    return group.median("gpu_mem_allocated_peak_bytes").has_value();
  });
}

std::optional<double> peak_bytes(const Group& group, bool gpu) {
  return group.median(gpu ? "gpu_mem_allocated_peak_bytes" : "cpu_rss_tree_peak_bytes");
}

namespace {

// Bytes on the rank that held most if recorded, else the maximum over ranks.
double held_bytes(const Group& group, const std::string& key) {
  const auto value = group.median("measured_" + key);
  return (value ? value : group.median(key)).value_or(0);
}

}  // namespace

std::vector<double> tensor_parts(const Group& group, bool gpu) {
  std::vector<double> parts;
  double held = 0;
  for (const TensorBytes& one : kHeldBytes) {
    parts.push_back(held_bytes(group, one.key));
    held += parts.back();
  }
  const auto activations = group.median("measured_activation_bytes");
  const double peak = group.median("gpu_mem_allocated_peak_bytes").value_or(0);
  parts.push_back(activations.value_or(gpu ? std::max(0.0, peak - held) : 0));
  parts.push_back(held_bytes(group, "host_bytes"));
  return parts;
}

std::optional<double> tensor_bytes(const Group& group) {
  if (!group.median("parameter_bytes")) return std::nullopt;
  const std::vector<double> parts = tensor_parts(group, /*gpu=*/false);
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

Table baseline_table(const Study& study) {
  TableBuilder table(
      study, "1", "Loss, rate and runtime",
      "Training loss: of the last step, and the mean of all. Samples/s: real samples "
      "over the whole runtime.");
  bool evaluated = false;
  for (const metrics::MetricField* field : metrics::fields_of(&TablePositions::results)) {
    if (field->event == metrics::EventKind::kEval && !std::exchange(evaluated, true)) {
      evaluation_columns(table, study);
    }
    table.field(*field);
  }
  if (const std::string formula = study.baseline->text("mfu_formula"); !formula.empty()) {
    table.note(
        concat("MFU: ", formula, "; peak ",
               number_text(study.baseline->median("peak_flops_per_second").value_or(0) / 1e12),
               " TFLOP/s. Rows with another formula or peak have none here"));
  }
  table.rows(groups_where(study, [](const Group&) { return true; }));
  return table.done();
}

Table memory_table(const Study& study) {
  TableBuilder table(
      study, "2", "Memory",
      "GPU, all of it: what the driver says is in use (NVML). Allocated: by tensors, "
      "of the rank that needs most. CPU: resident in all processes of the run on "
      "its node; shared pages count once a process, in PSS once.");
  for (const metrics::MetricField* field : metrics::fields_of(&TablePositions::memory)) {
    table.field(*field);
  }
  table.rows(groups_where(study, [](const Group& group) {
    return !group.finished() || group.median("cpu_rss_tree_peak_bytes") ||
           group.median("gpu_mem_allocated_peak_bytes");
  }));
  return table.done();
}

Table pinned_table(const Study& study) {
  TableBuilder table(study, "3", "Pinned memory",
                     "Offloaded state in page-locked or in ordinary host memory.");
  table.fact("model", "model")
      .text("dataset", "data", data_of)
      .text("pin_memory", "pinned", pinned_of)
      .fact("exp", "configuration")
      .number(
          "peak_gpu_bytes", "peak GPU MiB", [](const Group& g) { return peak_bytes(g, true); },
          kToMebibytes)
      .mebibytes("cpu_rss_tree_peak_bytes", "peak CPU MiB")
      .mebibytes("pinned_bytes", "pinned MiB")
      .number("train_runtime", "runtime s")
      .number("tokens_per_second_median", "tokens/s");
  table.rows(groups_where(study, [](const Group& g) { return offload_of(g) != "none"; }));
  return table.done();
}

Table offload_table(const Study& study) {
  const bool gpu = compares_gpu_memory(study.groups);
  const Group* base = study.baseline;
  const std::string memory = gpu ? "GPU" : "CPU";
  TableBuilder table(study, "4", "ZeRO stage and offload",
                     concat("Memory savings (a - b) / a of the ", memory,
                            " peak, changes (b - a) / a of the median step and of the runtime, "
                            "where a is the baseline."));
  const auto change = [base](const auto& value, double sign) {
    return [base, value, sign](const Group& group) -> std::optional<double> {
      const std::optional<double> a = value(*base), b = value(group);
      if (!a || !b || *a == 0 || &group == base) return std::nullopt;
      return sign * (*b - *a) / *a;
    };
  };
  const auto memory_of = [gpu](const Group& group) { return peak_bytes(group, gpu); };
  const auto step_of = [](const Group& group) { return group.median("step_time_median_s"); };
  const auto runtime_of = [](const Group& group) { return group.median("train_runtime"); };
  table.fact("model", "model")
      .text("dataset", "data", data_of)
      .fact("strategy", "strategy")
      .text("offload", "offload", offload_of)
      .text("pin_memory", "pinned", pinned_of)
      .number("world_size", "ranks", 1, 0)
      .number("gpu_mem_allocated_peak_bytes", "peak GPU MiB", kToMebibytes)
      .number("cpu_rss_tree_peak_bytes", "peak CPU MiB", kToMebibytes)
      .number("memory_savings_ratio", memory + " memory savings %", change(memory_of, -1), 100, 1)
      .number("step_time_median_s", "step ms", 1e3)
      .number("step_time_change_ratio", "step time change %", change(step_of, 1), 100, 1)
      .number("train_runtime", "runtime s")
      .number("runtime_change_ratio", "runtime change %", change(runtime_of, 1), 100, 1)
      .number("tokens_per_second_median", "tokens/s");
  if (study.groups.size() > 1) table.rows(groups_where(study, [](const Group&) { return true; }));
  return table.done();
}

std::optional<double> rate_deviation(const Group& group, bool repeated) {
  return repeated ? group.deviation("tokens_per_second_median")
                  : group.median("tokens_per_second_std");
}

Table dtype_table(const Study& study) {
  const std::vector<const Group*> groups = groups_where(study, [](const Group& group) {
    const std::string strategy = group.text("strategy");
    return is(strategy, StrategyKind::kDdp) || is(strategy, StrategyKind::kSingle) ||
           zero_stage(strategy);
  });
  const bool repeated =
      std::ranges::any_of(groups, [](const Group* group) { return group->repeats() > 1; });
  TableBuilder table(study, "6", "ZeRO stage and dtype",
                     repeated ? "Median and standard deviation over the repeats."
                              : "Median and standard deviation over the steps, warm-up left out.");
  table
      .text("stage", "stage",
            [](const Group& group) {
              const std::string strategy = group.text("strategy");
              const std::optional<int> stage = zero_stage(strategy);
              return stage ? std::to_string(*stage) : "0 (" + strategy + ")";
            })
      .text("parameter_dtype", "dtype", dtype_of)
      .number("world_size", "ranks", 1, 0)
      .number(
          "repeats", "repeats",
          [](const Group& group) { return static_cast<double>(group.repeats()); }, 1, 0)
      .number("tokens_per_second_median", "tokens/s, median")
      .number("tokens_per_second_std", "std tokens/s",
              [repeated](const Group& group) { return rate_deviation(group, repeated); })
      .number("step_time_median_s", "step ms, median", 1e3)
      .number(
          "step_time_std_s", "std step ms",
          [repeated](const Group& group) {
            return repeated ? group.deviation("step_time_median_s")
                            : group.median("step_time_std_s");
          },
          1e3)
      .number("gpu_mem_allocated_peak_bytes", "peak GPU MiB", kToMebibytes)
      .number("gpu_util_mean_ratio", "mean GPU utilisation %", 100, 1);
  if (std::ranges::all_of(groups, [](const Group* group) { return is_cpu(*group); })) {
    table.number("cpu_rss_tree_peak_bytes", "peak CPU MiB", kToMebibytes);
  }
  if (groups.size() > 1) table.rows(groups);
  return table.done();
}

}  // namespace tessera::report
