// SPDX-License-Identifier: MIT
#include "lib/plan/gradient_sharers.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "tessera/core/error.h"

namespace tessera {
namespace {

using Rule = CommunicationProblem::Rule;

// How often each world rank is in a sum.
using Shares = std::map<int, int>;

class Sharers {
 public:
  Sharers(const DryStep& step, const RankSequences& sequences)
      : step_(step), sequences_(sequences) {
    for (int rank = 0; rank < static_cast<int>(sequences.ranks().size()); ++rank) {
      if (!sequences.ran(rank)) continue;
      const RankRun& run = sequences.run_of(rank);
      partial_.insert(run.partial.begin(), run.partial.end());
      cut_.insert(run.cut.begin(), run.cut.end());
      const int stage = coordinate_of(rank, step.mesh).pipeline;
      for (const FollowedGradient& each : run.gradients) stages_[each.name].insert(stage);
    }
  }

  // Ranks whose gradients an update of the parameter must contain.
  std::set<int> expected(const std::string& name, int rank) const {
    const MeshCoordinate own = coordinate_of(rank, step_.mesh);
    const bool shared = is_shared_end(name), partial = partial_.contains(name);
    std::set<int> stages = stages_.at(name), slices{own.tensor};
    if (shared && !partial) stages = {own.pipeline};
    if (partial && !shared) {
      for (int tensor = 0; tensor < step_.mesh.tensor; ++tensor) slices.insert(tensor);
    }
    // Of experts: the owners of the same ones, whose tokens come from all ranks.
    const int groups = cut_.contains(name) && !shared ? step_.mesh.expert : 1;
    std::set<int> ranks;
    for (const int stage : stages) {
      for (int data = own.data % groups; data < step_.mesh.data; data += groups) {
        for (int context = 0; context < step_.mesh.context; ++context) {
          for (const int slice : slices) {
            ranks.insert(rank_of({stage, data, slice, context}, step_.mesh));
          }
        }
      }
    }
    return ranks;
  }

  // Ranks whose gradients it contains, from the operations that summed it.
  Shares actual(const KnownGradient& known, int rank) const {
    Shares shares{{rank, 1}};
    const auto& communicators = sequences_.run_of(rank).ledger.communicators;
    for (const SumOverRanks& sum : known.sums) {
      Shares next;
      for (const auto& [each, times] : shares) {
        for (const int member : communicators[sum.communicator].ranks) {
          next[moved(each, rank, member).value_or(member)] += times;
        }
      }
      shares = std::move(next);
    }
    return shares;
  }

 private:
  // The rank that lies from `rank` as `to` lies from `from`; nullopt: there is none. Data and
  // context are one axis here, as shards lie on it.
  std::optional<int> moved(int rank, int from, int to) const {
    const MeshCoordinate at = coordinate_of(rank, step_.mesh), a = coordinate_of(from, step_.mesh),
                         b = coordinate_of(to, step_.mesh);
    const auto sharding = [&](const MeshCoordinate& of) {
      return of.data * step_.mesh.context + of.context;
    };
    const int stage = at.pipeline + b.pipeline - a.pipeline,
              slice = at.tensor + b.tensor - a.tensor,
              shard = sharding(at) + sharding(b) - sharding(a);
    const auto in = [](int number, int size) { return number >= 0 && number < size; };
    if (!in(stage, step_.mesh.pipeline) || !in(slice, step_.mesh.tensor) ||
        !in(shard, step_.mesh.sharding())) {
      return std::nullopt;
    }
    return rank_of({stage, shard / step_.mesh.context, slice, shard % step_.mesh.context},
                   step_.mesh);
  }
  // True for parameters of the first and last block when all stages share them.
  bool is_shared_end(const std::string& name) const {
    if (step_.strategy || !step_.parallel.pipeline.shared_vocabulary || step_.mesh.pipeline == 1)
      return false;
    for (const BlockBuilder* end : {&step_.model.blocks.front(), &step_.model.blocks.back()}) {
      if (name.starts_with(end->name + ".")) return true;
    }
    return false;
  }

  const DryStep& step_;
  const RankSequences& sequences_;
  std::set<std::string> partial_, cut_;
  std::map<std::string, std::set<int>> stages_;  // stages that hold the parameter
};

std::string problem_of(const KnownGradient& known, const std::set<int>& expected,
                       const Shares& actual) {
  for (const SumOverRanks& sum : known.sums) {
    if (sum.reduce != ReduceOp::kSum) {
      return concat("its gradient is reduced by ", sum.reduce == ReduceOp::kMax ? "max" : "min",
                    ", not by sum");
    }
  }
  if (known.mixed) {
    return "its gradient adds parts that were summed over different ranks: what one of them has "
           "counts more than once, or something was added after the sum";
  }
  for (const auto& [rank, times] : actual) {
    if (!expected.contains(rank)) {
      return concat("its gradient has that of rank ", rank, ", which does not share it");
    }
    if (times > 1) {
      return concat("its gradient has that of rank ", rank, " ", times, " times; it is summed ",
                    "more than once");
    }
  }
  for (const int rank : expected) {
    if (!actual.contains(rank)) {
      return concat("its gradient lacks that of rank ", rank, ": it is summed over ", actual.size(),
                    " of ", expected.size(), " ranks");
    }
  }
  return "";
}

// Number of added sums (micro-batches) in most of a rank's gradients, by step.
std::map<int, int> usual_terms(const RankRun& run) {
  std::map<std::pair<int, int>, int64_t> elements;  // by step and terms
  for (const FollowedGradient& each : run.gradients) {
    for (const KnownGradient& known : each.parts) {
      if (!known.sums.empty()) elements[{each.step, known.terms}] += each.elements;
    }
  }
  std::map<int, int> usual;
  std::map<int, int64_t> most;
  for (const auto& [of, count] : elements) {
    if (count <= most[of.first]) continue;
    most[of.first] = count;
    usual[of.first] = of.second;
  }
  return usual;
}

}  // namespace

std::vector<CommunicationProblem> find_wrong_sums(const DryStep& step,
                                                  const RankSequences& sequences) {
  const Sharers sharers(step, sequences);
  std::vector<CommunicationProblem> problems;
  for (int rank = 0; rank < static_cast<int>(sequences.ranks().size()); ++rank) {
    if (!sequences.ran(rank)) continue;
    std::set<std::string> reported;
    std::map<int, int> usual = usual_terms(sequences.run_of(rank));
    for (const FollowedGradient& gradient : sequences.run_of(rank).gradients) {
      if (gradient.elements == 0) continue;
      const std::set<int> expected = sharers.expected(gradient.name, rank);
      for (const KnownGradient& known : gradient.parts) {
        std::string text = problem_of(known, expected, sharers.actual(known, rank));
        if (text.empty() && !known.sums.empty() && known.terms != usual[gradient.step]) {
          text = concat("its gradient adds up ", known.terms, " sums over ranks, those of others ",
                        usual[gradient.step], ": a micro-batch was left out, or counts twice");
        }
        if (text.empty() || !reported.insert(gradient.name).second) continue;
        problems.push_back({.rule = Rule::kGradient,
                            .rank = rank,
                            .operation = known.sums.empty() ? -1 : known.sums.back().operation,
                            .step = gradient.step,
                            .tensor = gradient.name,
                            .phase = "step",
                            .text = text});
      }
    }
  }
  return problems;
}

}  // namespace tessera
