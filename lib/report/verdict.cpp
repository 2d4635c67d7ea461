// SPDX-License-Identifier: MIT
#include "lib/report/verdict.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "lib/core/joined.h"
#include "lib/core/number_text.h"
#include "lib/core/units.h"
#include "tessera/core/error.h"

namespace tessera::report {
namespace {

constexpr double kOnEachOther = 1e-3;  // less than a pixel in the plots

std::string ratio_text(double ratio) { return ratio == 0 ? "0" : printed("%.1e", ratio); }

std::string rate_text(double tokens_per_second) {
  return number_text(tokens_per_second) + " tokens/s";
}

std::string memory_text(double bytes, bool gpu) {
  return concat(number_text(bytes / kMiB, 0), gpu ? " MiB allocated on a GPU at its peak"
                                                  : " MiB resident in its processes at the peak");
}

// The best value against the baseline's, or against the next one if it is the baseline.
struct BestGroup {
  const Group* best = nullptr;
  double value = 0;
  const Group* other = nullptr;
  double of_other = 0;
};

// Best first; unknown values are left out.
using Order = std::vector<std::pair<double, const Group*>>;
template <typename Value>
Order ordered(const std::vector<const Group*>& groups, bool greatest, const Value& value) {
  Order order;
  for (const Group* group : groups) {
    if (const auto number = value(*group); number && *number > 0) {
      order.emplace_back(greatest ? -*number : *number, group);
    }
  }
  std::ranges::stable_sort(order, {}, [](const auto& one) { return one.first; });
  return order;
}

BestGroup best_of(const Order& order, const Group* baseline) {
  BestGroup found;
  if (order.size() < 2) return found;
  found.best = order[0].second;
  found.value = std::abs(order[0].first);
  const auto other = std::ranges::find(order, found.best == baseline ? order[1].second : baseline,
                                       [](const auto& one) { return one.second; });
  const auto& beside = other == order.end() ? order[1] : *other;
  found.other = beside.second;
  found.of_other = std::abs(beside.first);
  return found;
}

std::string times_text(const BestGroup& found, const char* what) {
  return concat(", ", number_text(found.value / found.of_other), " times ", what, " of ",
                found.other->name);
}

std::optional<double> rate(const Group& group) { return group.median("tokens_per_second_median"); }

// [Note: no difference]
// Two rates count as equal if they differ by at most the deviation of their difference, the root of
// the sum of both squares.
std::string fastest_text(const std::vector<const Group*>& groups, const Group* baseline) {
  const Order order = ordered(groups, /*greatest=*/true, rate);
  const BestGroup fast = best_of(order, baseline);
  if (fast.best == nullptr) return "";
  const bool repeated =
      std::ranges::any_of(groups, [](const Group* group) { return group->repeats() > 1; });
  const auto deviation = [&](const Group* group) {
    return rate_deviation(*group, repeated).value_or(0);
  };
  std::vector<std::string> alike;
  bool with_baseline = false;
  double slowest = fast.value, noise = 0;
  for (const auto& [negative, group] : order) {
    const double apart = fast.value + negative;
    const double both = std::hypot(deviation(fast.best), deviation(group));
    if (group != fast.best && apart > both) continue;
    alike.push_back(group->name);
    with_baseline |= group == baseline;
    slowest = -negative;
    if (group != fast.best) noise = std::max(noise, both);
  }
  if (alike.size() == 1) {
    return concat(fast.best->name, ": ", rate_text(fast.value), " (median)",
                  times_text(fast, "the rate"));
  }
  const std::string beside =
      with_baseline || fast.other == nullptr
          ? ""
          : concat("; the fastest median is ", times_text(fast, "the rate").substr(2));
  const std::string rates =
      slowest == fast.value
          ? concat("a median of ", rate_text(fast.value))
          : concat("medians of ", number_text(slowest), " to ", rate_text(fast.value),
                   " lie within their standard deviation, ", number_text(noise));
  return concat("no difference between ", listed(alike), ": ", rates, beside);
}

// Compares tensors. Resident memory also contains libraries and caches, which no strategy changes.
VerdictLine least_memory(const std::vector<const Group*>& groups, const Study& study) {
  const bool gpu = compares_gpu_memory(study.groups);
  const BestGroup tensors =
      best_of(ordered(groups, /*greatest=*/false, tensor_bytes), study.baseline);
  if (!gpu && tensors.best != nullptr) {
    return {"Least memory",
            concat(tensors.best->name, ": ", number_text(tensors.value / kMiB),
                   " MiB of tensors on the rank that holds most", times_text(tensors, "those"))};
  }
  const auto peak = [gpu](const Group& group) { return peak_bytes(group, gpu); };
  const BestGroup least = best_of(ordered(groups, /*greatest=*/false, peak), study.baseline);
  if (least.best == nullptr) return {};
  return {"Least memory", concat(least.best->name, ": ", memory_text(least.value, gpu),
                                 times_text(least, "the peak"))};
}

// From the comparison's own verdicts.
std::string compared_text(const std::vector<const Run*>& compared) {
  std::vector<std::string> failed, unknown;
  double loss = 0, parameters = 0;
  std::string worst_loss, worst_parameters;
  for (const Run* run : compared) {
    const ParityCheck& c = *run->parity;
    const bool differs = c.verdict.starts_with("FAIL");
    if (!differs && c.verdict != "PASS") {
      unknown.push_back(run->name);
      continue;
    }
    if (differs) {
      failed.push_back(concat(run->name, " (loss ", ratio_text(c.loss.value_or(0)), ", parameters ",
                              ratio_text(c.parameters.value_or(0)), ")"));
    }
    if (c.loss.value_or(0) >= loss) {
      loss = c.loss.value_or(0);
      worst_loss = run->name;
    }
    if (c.parameters.value_or(0) >= parameters) {
      parameters = c.parameters.value_or(0);
      worst_parameters = run->name;
    }
  }
  const size_t judged = compared.size() - unknown.size();
  if (judged == 0) return "";
  const std::string reference = compared.front()->parity->reference;
  std::string text;
  if (failed.empty()) {
    text = concat("yes: ", judged == 1 ? compared.front()->name : concat("all ", judged),
                  judged == 1 ? " agrees" : " agree", " with ", reference);
  } else {
    text = concat("no: ", listed(failed), failed.size() == 1 ? " differs" : " differ", " from ",
                  reference);
  }
  text += concat("; largest relative difference of the loss ", ratio_text(loss), " (", worst_loss,
                 "), of the parameters ", ratio_text(parameters), " (", worst_parameters, ")");
  if (const auto tolerance = compared.front()->parity->tolerance) {
    text += concat(", tolerance ", ratio_text(*tolerance));
  }
  return text;
}

// From the steps' losses, if nothing was compared.
std::string losses_text(const std::vector<const Group*>& groups, const Group& baseline) {
  double largest = 0;
  std::string worst;
  int64_t count = 0;
  for (const Group* group : groups) {
    if (group == &baseline) continue;
    const auto difference = largest_difference(group->first(), baseline.first(), "loss");
    if (!difference) continue;
    ++count;
    if (*difference >= largest) {
      largest = *difference;
      worst = group->name;
    }
  }
  if (count == 0) return "";
  if (largest == 0)
    return concat("the losses of all steps are those of ", baseline.name, ", bit for bit");
  return concat("the losses of all steps differ from those of ", baseline.name, " by at most ",
                ratio_text(largest), " (", worst, ")");
}

// "2.871 s: backward 65 %, waiting for communication 26 %"; parts below 1 % are left out.
std::string phases_text(const Series& steps) {
  const auto whole = steps.mean("step_time_s");
  if (!whole || *whole <= 0) return "";
  std::vector<std::pair<double, std::string>> parts;
  for (const Phase& phase : kPhases) {
    const double share = steps.mean(phase.key).value_or(0) / *whole;
    if (share >= 0.01) parts.emplace_back(share, phase.title);
  }
  if (parts.empty()) return "";
  std::ranges::stable_sort(parts, std::ranges::greater{},
                           [](const auto& one) { return one.first; });
  std::string text = concat(number_text(*whole * 1e3), " ms in the mean: ");
  for (size_t i = 0; i < parts.size(); ++i) {
    text += concat(i == 0 ? "" : ", ", parts[i].second, " ", number_text(parts[i].first * 100, 0),
                   " %");
  }
  return text;
}

std::vector<VerdictLine> of_one(const Group& group) {
  const Run& run = group.first();
  const std::vector<double> steps = run.steps.column("step"), losses = run.steps.column("loss");
  const auto total = run.number("num_train_steps");
  std::vector<VerdictLine> found;
  std::string state = outcome_name(run.outcome);
  if (!steps.empty()) {
    state += concat(": step ", number_text(steps.back(), 0),
                    total ? " of " + number_text(*total, 0) : "");
    const auto runtime = run.number("train_runtime");
    const std::vector<double> elapsed = run.steps.column("elapsed_s");
    state += concat(" after ", number_text(runtime.value_or(elapsed.back()), 1), " s");
  }
  found.push_back({"State", state});
  if (!losses.empty()) {
    std::string loss = concat(number_text(losses.front(), 4), " in the first step, ",
                              number_text(losses.back(), 4), " in the last");
    if (const auto eval = run.number("eval_loss")) loss += ", evaluated " + number_text(*eval, 4);
    found.push_back({"Loss", loss});
  }
  auto speed = rate(group);
  if (!speed) speed = run.steps.mean("tokens_per_second");
  if (speed) found.push_back({"Speed", rate_text(*speed)});
  if (const std::string step = phases_text(run.steps); !step.empty())
    found.push_back({"Step", step});
  const bool gpu = run.steps.has("gpu_mem_allocated_bytes");
  std::vector<double> bytes = gpu ? run.steps.column("gpu_mem_allocated_bytes")
                                  : run.resources.column("cpu_rss_tree_bytes");
  std::erase_if(bytes, [](double one) { return !std::isfinite(one); });
  if (!bytes.empty()) {
    found.push_back({"Memory", memory_text(std::ranges::max(bytes), gpu)});
  }
  return found;
}

}  // namespace

std::vector<VerdictLine> verdict(const Study& study) {
  if (study.groups.size() == 1) return of_one(study.groups.front());
  if (study.baseline == nullptr) return {};
  std::vector<const Group*> same;
  std::vector<std::string> other, unfinished;
  for (const Group& group : study.groups) {
    if (!group.finished()) {
      unfinished.push_back(concat(group.name, " (", outcome_name(group.outcome()), ")"));
    } else if (!study.marks.of(group.first()).empty()) {
      other.push_back(group.name);
    } else {
      same.push_back(&group);
    }
  }
  std::vector<VerdictLine> found;
  if (const std::string fastest = fastest_text(same, study.baseline); !fastest.empty()) {
    found.push_back({"Fastest", fastest});
  }
  if (const VerdictLine least = least_memory(same, study); !least.text.empty())
    found.push_back(least);
  std::vector<const Run*> compared;
  for (const Group* group : same) {
    const auto& parity = group->first().parity;
    if (parity && parity->verdict != "reference") compared.push_back(&group->first());
  }
  std::string equal = compared.empty() ? "" : compared_text(compared);
  if (equal.empty()) equal = losses_text(same, *study.baseline);
  if (!equal.empty()) found.push_back({"Equal numbers", equal});
  if (!unfinished.empty()) found.push_back({"Did not finish", listed(unfinished)});
  if (!other.empty()) {
    found.push_back({"Left out here",
                     concat(listed(other), ", which did other work than ", study.baseline->name)});
  }
  return found;
}

std::string identical_curves(const std::vector<NamedCurve>& curves) {
  std::string text;
  std::vector<bool> told(curves.size());
  for (size_t i = 0; i < curves.size(); ++i) {
    if (told[i] || curves[i].y.empty()) continue;
    std::vector<std::string> names{curves[i].name};
    double largest = 0;
    for (size_t j = i + 1; j < curves.size(); ++j) {
      if (told[j] || curves[j].x != curves[i].x) continue;
      double difference = 0;
      for (size_t k = 0; k < curves[i].y.size(); ++k) {
        const double a = curves[i].y[k], b = curves[j].y[k];
        if (a == b || (std::isnan(a) && std::isnan(b))) continue;
        const double one = relative_difference(b, a);
        difference = std::isnan(one) ? kOnEachOther : std::max(difference, one);
      }
      if (difference >= kOnEachOther) continue;
      told[j] = true;
      names.push_back(curves[j].name);
      largest = std::max(largest, difference);
    }
    if (names.size() < 2) continue;
    text += concat(
        text.empty() ? "" : " ", listed(names), " lie on each other (",
        largest == 0 ? "equal bit for bit" : "largest relative difference " + ratio_text(largest),
        ").");
  }
  return text;
}

}  // namespace tessera::report
