// SPDX-License-Identifier: MIT
// Tables 5 (scaling) and 7 (two settings side by side).
#include <algorithm>
#include <map>

#include "lib/report/table_builder.h"
#include "lib/settings/options.h"
#include "tessera/core/error.h"

namespace tessera::report {
namespace {

using Groups = std::vector<const Group*>;

// Settings that depend on the number of ranks or the run's length.
const std::set<std::string> kOfRanks{"world_size",      "dp",          "max_steps",
                                     "num_train_steps", "train_slice", "num_train_samples"};

std::set<std::string> with(std::set<std::string> keys, const std::set<std::string>& more) {
  keys.insert(more.begin(), more.end());
  return keys;
}

// Groups equal except for `leave_out`, in order of first occurrence.
std::vector<Groups> families(const Study& study, const std::set<std::string>& leave_out,
                             const std::function<bool(const Group&)>& among = {}) {
  std::vector<Groups> found;
  std::map<std::string, size_t> places;
  for (const Group& group : study.groups) {
    if (among && !among(group)) continue;
    const std::string key = settings_key(group.first(), leave_out);
    const auto [place, fresh] = places.emplace(key, found.size());
    if (fresh) found.emplace_back();
    found[place->second].push_back(&group);
  }
  return found;
}

double ranks_of(const Group& group) { return group.median("world_size").value_or(1); }

bool by_ranks(const Group* a, const Group* b) { return ranks_of(*a) < ranks_of(*b); }

const std::set<std::string> kWeak = with(kOfRanks, {"global_batch_size"});
const std::set<std::string> kStrong =
    with(kOfRanks, {"per_device_train_batch_size", "gradient_accumulation_steps"});

// Families with several numbers of ranks, fewest first.
std::vector<Groups> scaling_families(const Study& study, const std::set<std::string>& leave_out) {
  std::vector<Groups> found;
  for (Groups& family : families(study, leave_out)) {
    std::ranges::stable_sort(family, by_ranks);
    if (ranks_of(*family.front()) < ranks_of(*family.back())) found.push_back(std::move(family));
  }
  return found;
}

// Rows by family.
Table scaling_table(const Study& study, TableBuilder& table,
                    const std::set<std::string>& leave_out) {
  std::map<const Group*, const Group*> smallest;
  Groups rows;
  for (const Groups& family : scaling_families(study, leave_out)) {
    for (const Group* group : family) {
      smallest[group] = family.front();
      rows.push_back(group);
    }
  }
  const auto efficiency_of = [&](const Group& group) -> std::optional<double> {
    const Group& one = *smallest.at(&group);
    const auto mine = group.median("tokens_per_second_median"),
               theirs = one.median("tokens_per_second_median");
    if (!mine || !theirs || *theirs == 0) return std::nullopt;
    return (*mine / ranks_of(group)) / (*theirs / ranks_of(one));
  };
  const bool gpu = compares_gpu_memory(study.groups);
  const auto peak = [gpu](const Group& group) { return peak_bytes(group, gpu); };
  const char* mean_key = gpu ? "gpu_mem_used_mean_bytes" : "cpu_rss_tree_mean_bytes";
  table.fact("strategy", "strategy")
      .number("world_size", "ranks", 1, 0)
      .number("per_device_train_batch_size", "batch per rank", 1, 0)
      .number("global_batch_size", "global batch", 1, 0)
      .number("train_runtime", "runtime s")
      .number("train_steps_per_second", "steps/s")
      .number("train_samples_per_second", "samples/s")
      .number("tokens_per_second_median", "tokens/s")
      .number("efficiency_ratio", "efficiency %", efficiency_of, 100, 1)
      .number("train_loss", "train loss", 1, 4)
      .number("eval_loss", "eval loss", 1, 4)
      .number("peak_bytes", gpu ? "peak GPU MiB" : "peak CPU MiB", peak, kToMebibytes)
      .mebibytes(mean_key, gpu ? "mean GPU MiB" : "mean CPU MiB");
  table.rows(rows);
  return table.done();
}

// Pairs of groups that differ in one setting only, side by side.
Table against(const Study& study, const std::string& id, const std::string& title,
              const std::string& key, const std::string& first, const std::string& second,
              const std::set<std::string>& leave_out) {
  const bool gpu = compares_gpu_memory(study.groups);
  std::map<const Group*, const Group*> partner;
  Groups rows;
  for (const Groups& family : families(study, with(leave_out, {key}))) {
    const Group *a = nullptr, *b = nullptr;
    for (const Group* group : family) {
      if (a == nullptr && group->text(key) == first) a = group;
      if (b == nullptr && group->text(key) == second) b = group;
    }
    if (a == nullptr || b == nullptr) continue;
    partner[a] = b;
    rows.push_back(a);
  }
  std::ranges::stable_sort(rows, {}, [](const Group* group) {
    return std::pair(ranks_of(*group), group->median("per_device_train_batch_size").value_or(0));
  });
  TableBuilder table(study, id, title,
                     concat("Rows with the same settings but for ", key, "; ", second, " / ", first,
                            " is the ratio."));
  const auto of_partner = [&partner](auto value) {
    return [&partner, value](const Group& group) { return value(*partner.at(&group)); };
  };
  const auto ratio = [&partner](auto value) {
    return [&partner, value](const Group& group) -> std::optional<double> {
      const std::optional<double> a = value(group), b = value(*partner.at(&group));
      if (!a || !b || *a == 0) return std::nullopt;
      return *b / *a;
    };
  };
  const auto rate = [](const Group& group) { return group.median("tokens_per_second_median"); };
  const auto loss = [](const Group& group) { return group.median("train_loss_final"); };
  const auto peak = [gpu](const Group& group) { return peak_bytes(group, gpu); };
  const std::string memory = gpu ? " peak GPU MiB" : " peak CPU MiB",
                    quotient = second + " / " + first + ", ";
  table.text("other_run", "against", [&](const Group& g) { return partner.at(&g)->name; })
      .number("world_size", "ranks", 1, 0)
      .number("per_device_train_batch_size", "batch per rank", 1, 0)
      .number("global_batch_size", "global batch", 1, 0)
      .fact("parameter_dtype", "dtype")
      .number("tokens_per_second_" + first, first + " tokens/s", rate)
      .number("tokens_per_second_" + second, second + " tokens/s", of_partner(rate))
      .number("tokens_per_second_ratio", quotient + "tokens/s", ratio(rate), 1, 3)
      .number("peak_bytes_" + first, first + memory, peak, kToMebibytes)
      .number("peak_bytes_" + second, second + memory, of_partner(peak), kToMebibytes)
      .number("peak_ratio", quotient + "peak", ratio(peak), 1, 3)
      .number("train_loss_final_" + first, first + " final loss", loss, 1, 4)
      .number("train_loss_final_" + second, second + " final loss", of_partner(loss), 1, 4);
  table.rows(rows);
  return table.done();
}

}  // namespace

Table weak_scaling_table(const Study& study) {
  TableBuilder table(study, "5a", "Weak scaling",
                     "The batch per rank stays, so the global batch grows with the ranks. "
                     "Efficiency: tokens/s per rank against the row with the fewest ranks.");
  return scaling_table(study, table, kWeak);
}

Table strong_scaling_table(const Study& study) {
  TableBuilder table(study, "5b", "Strong scaling",
                     "The global batch stays. Efficiency: tokens/s per rank against the row with "
                     "the fewest ranks.");
  return scaling_table(study, table, kStrong);
}

namespace {

// "zero2" for "zero2-4" and "zero2-16": without a separator or partial number at its end.
std::string common_start(const Groups& family) {
  std::string name = family.front()->name;
  bool cut_number = false;
  for (const Group* group : family) {
    const auto [mine, theirs] = std::ranges::mismatch(name, group->name);
    const auto is_digit = [](auto at, auto end) { return at != end && *at >= '0' && *at <= '9'; };
    if (mine != name.end() || theirs != group->name.end()) {
      cut_number = is_digit(mine, name.end()) || is_digit(theirs, group->name.end());
    }
    name.erase(mine, name.end());
  }
  const auto drop = [&](const char* what) {
    while (!name.empty() && std::string(what).find(name.back()) != std::string::npos) {
      name.pop_back();
    }
  };
  if (cut_number) drop("0123456789");
  drop("-_./ ");
  return name;
}

}  // namespace

std::vector<Scaling> scaling_series(const Study& study) {
  std::vector<Scaling> series;
  const auto weak = scaling_families(study, kWeak), strong = scaling_families(study, kStrong);
  const auto add = [&](const std::vector<Groups>& all, const char* kind) {
    for (const Groups& family : all) {
      std::string name = common_start(family);
      if (name.empty()) name = family.front()->text("strategy");
      series.push_back({weak.empty() || strong.empty() ? name : name + ", " + kind, family});
    }
  };
  add(weak, "weak");
  add(strong, "strong");
  return series;
}

Table stages_by_batch_table(const Study& study) {
  return against(study, "7a", "ZeRO-2 against ZeRO-3 by batch size", "strategy",
                 name_of(StrategyKind::kZero2), name_of(StrategyKind::kZero3),
                 {"persistence_threshold", "prefetch_blocks"});
}

Table zero_fsdp_table(const Study& study) {
  return against(study, "7b", "ZeRO-3 against FSDP", "strategy", name_of(StrategyKind::kZero3),
                 name_of(StrategyKind::kFsdp),
                 {"persistence_threshold", "prefetch_blocks", "fsdp_unit_numel",
                  "reshard_after_forward", "shard_ranks"});
}

Table schedules_table(const Study& study) {
  return against(study, "7c", "GPipe against 1F1B", "pipeline_schedule",
                 name_of(ScheduleKind::kGPipe), name_of(ScheduleKind::kOneFOneB), {});
}

Table offload_by_ranks_table(const Study& study) {
  const bool gpu = compares_gpu_memory(study.groups);
  Groups rows;
  const std::set<std::string> varies = with(
      kOfRanks, {"offload", "pin_memory", "offload_step", "offload_threads", "global_batch_size",
                 "per_device_train_batch_size", "gradient_accumulation_steps"});
  for (Groups family : families(study, varies)) {
    const bool offloads = std::ranges::any_of(
        family, [](const Group* group) { return group->text("offload").starts_with("optimizer"); });
    if (!offloads || family.size() < 2) continue;
    std::ranges::stable_sort(family, by_ranks);
    rows.insert(rows.end(), family.begin(), family.end());
  }
  TableBuilder table(study, "7d", "Offload by data-parallel degree",
                     "One strategy after another; the runs of each differ in offload and ranks.");
  table.fact("strategy", "strategy")
      .fact("offload", "offload")
      .fact("pin_memory", "pinned")
      .number("dp", "data ranks", 1, 0)
      .number("tokens_per_second_median", "tokens/s")
      .number(
          "peak_bytes", gpu ? "peak GPU MiB" : "peak CPU MiB",
          [gpu](const Group& g) { return peak_bytes(g, gpu); }, kToMebibytes)
      .mebibytes("host_bytes", "on the host MiB")
      .mebibytes("pinned_bytes", "pinned MiB");
  table.rows(rows);
  return table.done();
}

Table largest_batch_table(const Study& study) {
  const bool gpu = compares_gpu_memory(study.groups);
  const auto batch_of = [](const Group* group) {
    return group->median("per_device_train_batch_size").value_or(0);
  };
  std::map<const Group*, double> too_large;
  Groups rows;
  for (Groups family :
       families(study, {"per_device_train_batch_size", "gradient_accumulation_steps"})) {
    std::ranges::stable_sort(family, {}, batch_of);
    if (family.size() < 2 || batch_of(family.front()) == batch_of(family.back())) continue;
    const Group* largest = nullptr;
    for (const Group* group : family) {
      if (group->finished()) largest = group;
    }
    if (largest == nullptr) continue;
    for (const Group* group : family) {
      if (group->outcome() != RunOutcome::kOutOfMemory || batch_of(group) <= batch_of(largest))
        continue;
      too_large.emplace(largest, batch_of(group));
    }
    rows.push_back(largest);
  }
  // tessera-compare --largest_batch has searched already.
  for (const Group& group : study.groups) {
    if (!group.median("largest_batch_size")) continue;
    if (std::ranges::find(rows, &group) == rows.end()) rows.push_back(&group);
    if (const auto fails = group.median("out_of_memory_batch_size")) too_large[&group] = *fails;
  }
  TableBuilder table(study, "7e", "Largest batch per device at a constant global batch",
                     "The largest that trained, and the smallest above it that ran out of memory; "
                     "where none did, a larger one may fit.");
  table.fact("strategy", "strategy")
      .number("world_size", "ranks", 1, 0)
      .fact("gradient_checkpointing", "checkpointing")
      .number("global_batch_size", "global batch", 1, 0)
      .number("per_device_train_batch_size", "largest batch", 1, 0)
      .number(
          "out_of_memory_batch_size", "out of memory at",
          [&](const Group& group) -> std::optional<double> {
            const auto found = too_large.find(&group);
            return found == too_large.end() ? std::nullopt : std::optional(found->second);
          },
          1, 0)
      .number("tokens_per_second_median", "tokens/s")
      .number(
          "peak_bytes", gpu ? "peak GPU MiB" : "peak CPU MiB",
          [gpu](const Group& g) { return peak_bytes(g, gpu); }, kToMebibytes);
  table.rows(rows);
  return table.done();
}

}  // namespace tessera::report
