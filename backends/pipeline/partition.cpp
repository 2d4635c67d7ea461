// SPDX-License-Identifier: MIT
#include "tessera/backends/pipeline/partition.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "backends/pipeline/schedule_kinds.h"
#include "lib/core/joined.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Split with the lowest total of part costs, transformed by `weigh` and combined by `join`; weigh
// may return infinity to exclude a part.
struct Split {
  std::vector<size_t> counts;
  double value = kInfinite;
};
Split best_split(const std::vector<double>& costs, size_t parts,
                 const std::function<double(double)>& weigh,
                 const std::function<double(double, double)>& join) {
  const size_t blocks = costs.size();
  std::vector<double> before(blocks + 1, 0);
  std::partial_sum(costs.begin(), costs.end(), before.begin() + 1);
  // value[p][n]: best value of the first n blocks in p parts; cut[p][n]: start of the last of them.
  std::vector<std::vector<double>> value(parts + 1, std::vector<double>(blocks + 1, kInfinite));
  std::vector<std::vector<size_t>> cut(parts + 1, std::vector<size_t>(blocks + 1, 0));
  value[0][0] = 0;
  for (size_t p = 1; p <= parts; ++p) {
    for (size_t n = p; n <= blocks; ++n) {
      for (size_t begin = p - 1; begin < n; ++begin) {
        const double joined = join(value[p - 1][begin], weigh(before[n] - before[begin]));
        if (joined < value[p][n]) {
          value[p][n] = joined;
          cut[p][n] = begin;
        }
      }
    }
  }
  Split split{.counts = std::vector<size_t>(parts), .value = value[parts][blocks]};
  for (size_t p = parts, end = blocks; p > 0; end = cut[p--][end]) {
    split.counts[p - 1] = end - cut[p][end];
  }
  return split;
}

}  // namespace

std::vector<size_t> balanced_split(const std::vector<double>& costs, size_t parts) {
  check(parts >= 1 && parts <= costs.size(), ErrorCode::kInvalidArgument, costs.size(),
        " blocks cannot be split into ", parts, " parts of at least one block");
  const double sum = std::accumulate(costs.begin(), costs.end(), 0.0);
  if (sum <= 0) return balanced_split(std::vector<double>(costs.size(), 1.0), parts);
  const auto largest = [](double a, double b) { return std::max(a, b); };
  const double bound = best_split(
                           costs, parts, [](double cost) { return cost; }, largest)
                           .value +
                       1e-9 * sum;
  const auto square = [&](double cost) {
    return cost > bound ? kInfinite : cost / sum * (cost / sum);
  };
  return best_split(costs, parts, square, std::plus<>()).counts;
}

std::vector<size_t> two_phase_split(const std::vector<double>& costs, size_t parts,
                                    double forward) {
  if (parts < 2 || parts > costs.size()) return balanced_split(costs, parts);
  std::vector<size_t> best;
  double least = kInfinite, least_part = kInfinite;
  double beside_loss = 0;  // blocks of the last part, without the loss
  for (size_t last = 1; last + parts - 1 <= costs.size(); ++last) {
    const auto rest_end = costs.end() - static_cast<ptrdiff_t>(last);
    if (last > 1) beside_loss += *rest_end;
    const std::vector<double> rest(costs.begin(), rest_end);
    std::vector<size_t> counts = balanced_split(rest, parts - 1);
    double most = 0;
    for (auto begin = rest.begin(); const size_t count : counts) {
      const auto end = begin + static_cast<ptrdiff_t>(count);
      most = std::max(most, std::accumulate(begin, end, 0.0));
      begin = end;
    }
    const double both = std::max(forward * most, forward * beside_loss + costs.back()) +
                        (1 - forward) * std::max(most, beside_loss);
    const double part = std::max(most, beside_loss + costs.back());
    const double margin = 1e-9 * (both + part);
    if (both > least + margin || (both > least - margin && part > least_part - margin)) continue;
    least = both, least_part = part;
    best = std::move(counts);
    best.push_back(last);
  }
  return best;
}

double forward_share(bool recompute) { return recompute ? 1.0 / 4 : 1.0 / 3; }

std::vector<std::string> model_balances() {
  return {name_of(StageBalance::kFlops), name_of(StageBalance::kParameters)};
}

StageBalance stage_balance(const std::string& name) {
  const std::vector<std::string> known = model_balances();
  StageBalance by{};
  check(std::ranges::count(known, name) > 0 && set_text(field_of(by), name),
        ErrorCode::kInvalidArgument, "pipeline.balance is \"", name, "\"; use ",
        listed(known, " or "), ", or give measured block_costs");
  return by;
}

std::vector<double> block_costs(const ModelSpec& model, const PipelineConfig& config,
                                bool recompute) {
  std::vector<double> costs = config.block_costs;
  if (!costs.empty()) {
    check(costs.size() == model.block_count(), ErrorCode::kInvalidArgument,
          "pipeline.block_costs has ", costs.size(), " numbers, model ", model.name, " has ",
          model.block_count(), " blocks");
    const bool valid = std::all_of(costs.begin(), costs.end(),
                                   [](double cost) { return std::isfinite(cost) && cost >= 0; });
    check(valid, ErrorCode::kInvalidArgument,
          "pipeline.block_costs must be finite and not negative");
  } else if (stage_balance(config.balance) == StageBalance::kFlops) {
    for (const auto& block : model.blocks) costs.push_back(block.cost.flops_per_token);
  } else {
    for (const auto& block : model.blocks) {
      costs.push_back(static_cast<double>(block.cost.parameters));
    }
    return costs;
  }
  if (recompute) {
    for (size_t i = 0; i + 1 < costs.size(); ++i) costs[i] *= 4.0 / 3;
  }
  return costs;
}

std::vector<ModelPart> partition(const ModelSpec& model, const PipelineConfig& config, int stages,
                                 bool recompute) {
  std::vector<double> costs = block_costs(model, config, recompute);
  size_t first = 0;
  if (config.shared_vocabulary) {
    check(model.shareable_ends && costs.size() > 2, ErrorCode::kInvalidArgument, "model ",
          model.name,
          " has no embedding and head that all pipeline stages can share "
          "(ModelSpec::shareable_ends); leave them on the first and the last stage");
    costs = std::vector<double>(costs.begin() + 1, costs.end() - 1);
    first = 1;
  }
  const size_t parts = static_cast<size_t>(stages) * static_cast<size_t>(config.chunks);
  const size_t stages_left = costs.size() / static_cast<size_t>(config.chunks),
               chunks_left = costs.size() / static_cast<size_t>(stages);
  const std::string remedy = stages_left >= 2   ? concat("use at most ", stages_left, " stages")
                             : chunks_left >= 1 ? concat("use at most ", chunks_left, " chunks")
                                                : "leave the pipeline out";
  check(parts <= costs.size(), ErrorCode::kInvalidArgument, "model ", model.name, " has ",
        costs.size(), first > 0 ? " blocks between its ends" : " blocks", ", too few for ", stages,
        " pipeline stages of ", config.chunks, config.chunks == 1 ? " chunk" : " chunks", "; ",
        remedy);
  // The loss is a block of the last part, and costs are times.
  const bool times =
      !config.block_costs.empty() || stage_balance(config.balance) == StageBalance::kFlops;
  const bool two_phases =
      schedule_kind(config.schedule) == ScheduleKind::kGPipe && !config.shared_vocabulary && times;
  std::vector<ModelPart> result;
  auto begin = costs.begin();
  for (size_t count : two_phases ? two_phase_split(costs, parts, forward_share(recompute))
                                 : balanced_split(costs, parts)) {
    const auto end = begin + static_cast<ptrdiff_t>(count);
    result.push_back({first, count, std::accumulate(begin, end, 0.0)});
    first += count;
    begin = end;
  }
  return result;
}

}  // namespace tessera
