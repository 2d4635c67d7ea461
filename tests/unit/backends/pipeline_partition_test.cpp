// SPDX-License-Identifier: MIT
// The balanced partition of blocks into stages against all possible ones.
#include <algorithm>
#include <functional>
#include <numeric>
#include <random>

#include "tessera/backends/pipeline/partition.h"
#include "tessera/core/error.h"
#include "tessera/models/block_times.h"
#include "tessera/models/language_model.h"
#include "tests/support/test.hpp"

using namespace tessera;
using tessera::test::contains;

namespace {

struct Judged {
  double largest = 0, squares = 0;
};

Judged judge(const std::vector<double>& costs, const std::vector<size_t>& counts) {
  Judged judged;
  size_t first = 0;
  for (size_t count : counts) {
    const auto begin = costs.begin() + static_cast<ptrdiff_t>(first);
    const double sum = std::accumulate(begin, begin + static_cast<ptrdiff_t>(count), 0.0);
    judged.largest = std::max(judged.largest, sum);
    judged.squares += sum * sum;
    first += count;
  }
  return judged;
}

Judged best_of_all(const std::vector<double>& costs, size_t parts,
                   std::vector<size_t> counts = {}) {
  const size_t used = std::accumulate(counts.begin(), counts.end(), size_t{0});
  if (parts == 1) {
    counts.push_back(costs.size() - used);
    return judge(costs, counts);
  }
  Judged best{1e300, 1e300};
  for (size_t count = 1; used + count + parts - 1 <= costs.size(); ++count) {
    auto more = counts;
    more.push_back(count);
    const Judged other = best_of_all(costs, parts - 1, more);
    const bool better = other.largest < best.largest - 1e-9 ||
                        (other.largest < best.largest + 1e-9 && other.squares < best.squares);
    if (better) best = other;
  }
  return best;
}

ModelSpec model_of(const std::vector<BlockCost>& costs) {
  ModelSpec model{.name = "fake"};
  for (size_t i = 0; i < costs.size(); ++i) {
    model.blocks.push_back({std::to_string(i), nullptr, costs[i]});
  }
  return model;
}

std::vector<size_t> counts_of(const ModelSpec& model, const PipelineConfig& config, int stages) {
  std::vector<size_t> counts;
  size_t next = 0;
  for (const auto& part : partition(model, config, stages)) {
    CHECK(part.first == next);
    next += part.count;
    counts.push_back(part.count);
  }
  CHECK(next == model.block_count());
  return counts;
}

}  // namespace

TEST_CASE("the split is the best of all splits") {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<double> costs(1 + random() % 10);
    for (double& cost : costs) cost = random() % 4 == 0 ? 0 : static_cast<double>(random() % 50);
    if (round % 3 == 0) costs.back() = 200;  // a head
    for (size_t parts = 1; parts <= costs.size(); ++parts) {
      const auto counts = balanced_split(costs, parts);
      REQUIRE(counts.size() == parts);
      CHECK(*std::min_element(counts.begin(), counts.end()) >= 1);
      CHECK(std::accumulate(counts.begin(), counts.end(), size_t{0}) == costs.size());
      const bool unknown = std::all_of(costs.begin(), costs.end(), [](double c) { return c == 0; });
      if (unknown) continue;
      const Judged best = best_of_all(costs, parts), mine = judge(costs, counts);
      CHECK(mine.largest == Approx(best.largest));
      CHECK(mine.squares == Approx(best.squares));
    }
  }
}

TEST_CASE("the split of two phases is the best of all splits") {
  std::mt19937 random(6);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> costs(2 + random() % 8);
    for (double& cost : costs) cost = random() % 4 == 0 ? 0 : static_cast<double>(random() % 50);
    if (round % 3 == 0) costs.back() = 200;
    const double share = round % 2 == 0 ? 1.0 / 3 : 1.0 / 4;
    const auto phases = [&](const std::vector<size_t>& counts) {
      double forward = 0, backward = 0;
      size_t block = 0;
      for (const size_t count : counts) {
        double mine = 0, others = 0;
        for (const size_t end = block + count; block < end; ++block) {
          const bool loss = block + 1 == costs.size();
          mine += (loss ? 1 : share) * costs[block];
          others += (loss ? 0 : 1 - share) * costs[block];
        }
        forward = std::max(forward, mine), backward = std::max(backward, others);
      }
      CHECK(block == costs.size());
      return forward + backward;
    };
    for (size_t parts = 1; parts <= costs.size(); ++parts) {
      double least = 1e300;
      const std::function<void(std::vector<size_t>, size_t)> all = [&](std::vector<size_t> counts,
                                                                       size_t left) {
        if (counts.size() + 1 == parts) {
          counts.push_back(left);
          least = std::min(least, phases(counts));
          return;
        }
        for (size_t count = 1; count + parts - counts.size() - 1 <= left; ++count) {
          std::vector<size_t> more = counts;
          more.push_back(count);
          all(more, left - count);
        }
      };
      all({}, costs.size());
      const auto counts = two_phase_split(costs, parts, share);
      REQUIRE(counts.size() == parts);
      CHECK(*std::min_element(counts.begin(), counts.end()) >= 1);
      CHECK(phases(counts) == Approx(least));
    }
  }
}

TEST_CASE("gpipe's last stage has less beside the loss, whose backward is in forward") {
  const ModelSpec model = LanguageModel::preset("bloom-560m").make_causal();
  PipelineConfig config{.schedule = "gpipe", .block_costs = block_times(model, 1)};
  CHECK(counts_of(model, config, 2) == std::vector<size_t>{13, 13});
  config.schedule = "1f1b";
  CHECK(counts_of(model, config, 2) == std::vector<size_t>{19, 7});
  // Balance by parameters ignores time.
  PipelineConfig held{.schedule = "gpipe", .balance = "parameters"};
  const auto of_gpipe = counts_of(model, held, 2);
  held.schedule = "1f1b";
  CHECK(of_gpipe == counts_of(model, held, 2));
}

TEST_CASE("the big embedding and head get fewer layers beside them") {
  // BLOOM-560m: 24 layers of 12 h^2 parameters, vocabulary of 250,880.
  const double h = 1024, layer = 12 * h * h, table = 250'880 * h;
  std::vector<BlockCost> costs(26, {static_cast<int64_t>(layer), 6 * layer});
  costs.front() = {static_cast<int64_t>(table), 0};
  costs.back() = {static_cast<int64_t>(table), 6 * table};
  const ModelSpec model = model_of(costs);
  CHECK(counts_of(model, {}, 2) == std::vector<size_t>{23, 3});
  CHECK(counts_of(model, {}, 4) == std::vector<size_t>{9, 8, 8, 1});
  CHECK(counts_of(model, {.balance = "parameters"}, 4) == std::vector<size_t>{1, 12, 12, 1});
  // With recomputation, 32 layers' worth of layers against 20.4 of the head.
  CHECK(partition(model, {}, 2, /*recompute=*/true).front().count == 21);
  PipelineConfig measured;
  measured.block_costs = std::vector<double>(26, 1);
  CHECK(counts_of(model, measured, 4) == std::vector<size_t>{6, 6, 7, 7});
}

TEST_CASE("stages by time: a layer moves more than the head, which only targets meet") {
  const ModelSpec model = LanguageModel::preset("bloom-560m").make_causal();
  const std::vector<double> times = block_times(model, 1);
  REQUIRE(times.size() == 26);
  // On an H200: 4.9 ms for the head and 0.437 per layer with 2,048 tokens, 19.9 and 1.43 with
  // 8,192.
  CHECK(times.back() / times[1] > 4.9 / 0.437);
  CHECK(times.back() / times[1] < 19.9 / 1.43);
  const auto split = [&](double supervised_share, int stages) {
    return counts_of(model, {.block_costs = block_times(model, supervised_share)}, stages);
  };
  CHECK(split(1, 2) == std::vector<size_t>{19, 7});
  CHECK(split(0.02, 2) == std::vector<size_t>{13, 13});  // supervised share of SQuAD's answers
  CHECK(split(1, 4) == std::vector<size_t>{9, 8, 8, 1});
  const ModelSpec unknown = model_of({{1, 5}, {1, 7}, {1, 8}});
  CHECK(block_times(unknown, 0.5) == std::vector<double>{5, 7, 4});
  for (const double share : {-0.1, 1.1}) {
    CHECK_THROWS_WITH(block_times(model, share), contains("between 0 and 1"));
  }
}

TEST_CASE("ends that all stages share leave even layers") {
  std::vector<BlockCost> costs(26, {12, 72});
  costs.front() = {245, 0};
  costs.back() = {245, 1470};
  ModelSpec model = model_of(costs);
  model.shareable_ends = true;
  std::vector<size_t> counts;
  for (const auto& part : partition(model, {.shared_vocabulary = true}, 4)) {
    CHECK(part.first == 1 + 6 * counts.size());
    CHECK(part.cost == 6 * 72);
    counts.push_back(part.count);
  }
  CHECK(counts == std::vector<size_t>{6, 6, 6, 6});
}

TEST_CASE("unknown costs fall back to equal counts, and what cannot be is refused with numbers") {
  const ModelSpec model = model_of(std::vector<BlockCost>(7));
  auto sorted = counts_of(model, {}, 3);
  std::sort(sorted.begin(), sorted.end());
  CHECK(sorted == std::vector<size_t>{2, 2, 3});
  PipelineConfig chunks{.schedule = "interleaved", .chunks = 3};
  CHECK(counts_of(model, chunks, 2).size() == 6);
  CHECK_THROWS_WITH(partition(model, chunks, 3),
                    contains("7 blocks, too few for 3 pipeline stages of 3 chunks") &&
                        contains("at most 2 stages"));
  CHECK_THROWS_WITH(partition(model, {}, 8), contains("7 blocks, too few for 8 pipeline stages"));
  chunks.chunks = 5;
  CHECK_THROWS_WITH(partition(model, chunks, 2), contains("use at most 3 chunks"));
  chunks.chunks = 8;
  CHECK_THROWS_WITH(partition(model, chunks, 8), contains("leave the pipeline out"));
  CHECK_THROWS_WITH(partition(model, {.balance = "weight"}, 2),
                    contains("\"weight\"; use flops or parameters"));
  PipelineConfig measured;
  measured.block_costs = {1, 2};
  CHECK_THROWS_WITH(partition(model, measured, 2), contains("2 numbers") && contains("7 blocks"));
  measured.block_costs = {1, 2, 3, 4, 5, 6, -1};
  CHECK_THROWS_WITH(partition(model, measured, 2), contains("not negative"));
}
