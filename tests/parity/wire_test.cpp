// SPDX-License-Identifier: MIT
// Gradients accumulate in precision.gradient's dtype and are reduced in precision.reduce's, checked
// by bits and bytes.
#include "tests/parity/parity.h"
#include "tests/parity/probe.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int kRanks = 4, kMicroBatches = 8;
constexpr int64_t kNumel = 1024;  // a multiple of ranks x alignment, so no padding

// Largest relative rounding error of this dtype: half the distance from 1 to the next value.
double unit_roundoff(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? 0x1p-8 : dtype == at::kHalf ? 0x1p-11 : 0x1p-24;
}

// Numbers with magnitudes in [1/4, 4) and both signs that need all digits of fp32.
GradientParts random_parts(int ranks, int micro_batches) {
  at::manual_seed(17);
  GradientParts parts(static_cast<size_t>(ranks));
  for (auto& mine : parts) {
    for (int m = 0; m < micro_batches; ++m) {
      mine.push_back(at::exp2(at::rand({kNumel}) * 4 - 2) * at::randn({kNumel}).sign());
    }
  }
  return parts;
}

struct Way {
  std::string name;
  ParallelConfig config;
  bool reduces_often = false;  // every micro-batch, not once per step
};

std::vector<Way> ways() {
  std::vector<Way> list;
  for (const std::string strategy : {"ddp", "zero1", "zero2", "zero3", "fsdp"}) {
    list.push_back({strategy, {.strategy = strategy}, strategy > "zero1" || strategy == "fsdp"});
  }
  for (const std::string strategy : {"zero2", "fsdp"}) {
    list.push_back(
        {strategy + " at the boundary", {.strategy = strategy, .reduce_at_boundary = true}});
  }
  list.push_back({"zero3, in full", {.strategy = "zero3", .persistence_threshold = 1}, true});
  list.push_back({"fsdp, two groups", {.strategy = "fsdp", .shard_ranks = 2}, true});
  list.push_back({"fsdp, replicated", {.strategy = "fsdp", .shard_ranks = 1}});
  return list;
}

PrecisionConfig precision(at::ScalarType parameter, at::ScalarType gradient,
                          at::ScalarType reduce) {
  return {.parameter = parameter, .gradient = gradient, .reduce = reduce};
}

// Expected reduction by the in-process ranks of a group: each value rounded to the reduce dtype,
// added in fp32 in rank order, rounded once.
at::Tensor reduced(const std::vector<at::Tensor>& values, at::ScalarType reduce) {
  at::Tensor sum = at::zeros({kNumel});
  for (const auto& value : values) sum = sum + rounded(value, reduce);
  return rounded(sum, reduce);
}

void check_wire_dtype(const Way& way, const GradientParts& parts) {
  for (const auto gradient : {at::kFloat, at::kBFloat16}) {
    for (const auto reduce : {at::kFloat, at::kBFloat16, at::kHalf}) {
      ParallelConfig config = way.config;
      config.precision = precision(at::kBFloat16, gradient, reduce);
      INFO(way.name << ", gradient " << gradient << ", reduce " << reduce);
      for (const ProbeResult& result : run_probe(config, parts)) {
        const auto reductions = gradient_reductions(result.wire);
        REQUIRE_FALSE(reductions.empty());
        bool fine = false;
        for (const auto& record : reductions) {
          CHECK(record.values.scalar_type() == reduce);
          fine = fine || !representable(record.values, at::kBFloat16);
        }
        // Digits beyond bf16 are transferred if both dtypes have them.
        CHECK(fine == (gradient == at::kFloat && reduce != at::kBFloat16));
      }
    }
  }
}

}  // namespace

TEST_CASE("the wire carries precision.reduce: dtypes and digits") {
  const GradientParts parts = random_parts(kRanks, 2);
  for (const Way& way : ways()) {
    if (way.config.shard_ranks != 2) check_wire_dtype(way, parts);
  }
}

TEST_CASE("the wire carries precision.reduce over the replicas of hybrid sharding") {
  for (const Way& way : ways()) {
    if (way.config.shard_ranks == 2) check_wire_dtype(way, random_parts(kRanks, 2));
  }
}

TEST_CASE("the wire carries precision.reduce: bytes") {
  const GradientParts parts = random_parts(kRanks, 2);
  for (const Way& way : ways()) {
    if (way.config.shard_ranks == 2) continue;
    INFO(way.name);
    ParallelConfig config = way.config;
    config.precision = precision(at::kBFloat16, at::kFloat, at::kFloat);
    const auto wide = run_probe(config, parts);
    config.precision.reduce = at::kBFloat16;
    const auto narrow = run_probe(config, parts);
    // An all-reduce transfers everything twice, a reduce-scatter once; 16 bits save two bytes of
    // four.
    const bool all_reduces = config.strategy == "ddp" || config.shard_ranks == 1;
    const int64_t passes = all_reduces ? 2 : way.reduces_often ? 2 : 1;
    const int64_t elements = passes * kNumel * (kRanks - 1) / kRanks;
    for (size_t rank = 0; rank < wide.size(); ++rank) {
      CHECK(wide[rank].bytes_sent - narrow[rank].bytes_sent == 2 * elements);
    }
  }
}

TEST_CASE("reduced once a step: sums over micro-batches in the gradient's dtype, bit for bit") {
  const GradientParts parts = random_parts(kRanks, kMicroBatches);
  for (const auto gradient : {at::kFloat, at::kBFloat16, at::kHalf}) {
    std::vector<at::Tensor> sums;
    for (const auto& mine : parts) {
      sums.push_back(at::zeros({kNumel}));
      for (const auto& part : mine) sums.back() = rounded(sums.back() + part, gradient);
    }
    for (const auto reduce : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor expected = rounded(reduced(sums, reduce), gradient);
      for (const Way& way : ways()) {
        if (way.reduces_often) continue;
        INFO(way.name << " gradient " << gradient << ", reduce " << reduce);
        ParallelConfig config = way.config;
        config.precision = precision(at::kBFloat16, gradient, reduce);
        for (const auto& result : run_probe(config, parts)) CHECK(result.gradient.equal(expected));
      }
    }
  }
}

// Each micro-batch's own part is rounded; the sum of earlier ones never is.
TEST_CASE("reduced every micro-batch: sums in the gradient's dtype, bit for bit") {
  const GradientParts parts = random_parts(kRanks, kMicroBatches);
  for (const auto reduce : {at::kBFloat16, at::kHalf}) {
    const auto sum_over = [&](size_t first, size_t end) {
      at::Tensor sum = at::zeros({kNumel});
      for (size_t m = 0; m < kMicroBatches; ++m) {
        std::vector<at::Tensor> values;
        for (size_t rank = first; rank < end; ++rank) values.push_back(parts[rank][m]);
        sum = sum + reduced(values, reduce);
      }
      return sum;
    };
    for (const Way& way : ways()) {
      if (!way.reduces_often) continue;
      INFO(way.name << " reduce " << reduce);
      ParallelConfig config = way.config;
      config.precision = precision(at::kBFloat16, at::kFloat, reduce);
      const at::Tensor expected = config.shard_ranks == 2
                                      ? reduced({sum_over(0, 2), sum_over(2, kRanks)}, reduce)
                                      : sum_over(0, kRanks);
      for (const auto& result : run_probe(config, parts)) CHECK(result.gradient.equal(expected));
    }
  }
}

// With u the unit roundoff of the reduce dtype: each rank's part of a micro-batch is rounded (u of
// its size), and so is the sum over ranks (u of its size, which is at most 1 + u of all sizes).
// Otherwise there are only kMicroBatches additions in fp32, 2^-24 of all sizes each. So a sum is
// off by (2 + u) u + kMicroBatches 2^-24 of the sum of sizes, for any number of micro-batches. Here
// later parts are 0.49 u of the first: rounding the running sum would lose every one of them,
// (kMicroBatches - 1) 0.49 u in all.
TEST_CASE("reduced every micro-batch: the error does not grow with the number of micro-batches") {
  for (const auto reduce : {at::kBFloat16, at::kHalf}) {
    const double u = unit_roundoff(reduce);
    GradientParts parts = random_parts(kRanks, kMicroBatches);
    at::Tensor exact = at::zeros({kNumel}, at::kDouble);
    for (auto& mine : parts) {
      mine[0] = mine[0].abs();
      for (size_t m = 1; m < kMicroBatches; ++m) mine[m] = mine[0] * (0.49 * u);
      for (const auto& part : mine) exact += part;
    }
    const at::Tensor bound = exact * ((2 + u) * u + kMicroBatches * 0x1p-24);
    for (const Way& way : ways()) {
      if (!way.reduces_often || way.config.shard_ranks == 2) continue;
      INFO(way.name << " reduce " << reduce);
      ParallelConfig config = way.config;
      config.precision = precision(at::kBFloat16, at::kFloat, reduce);
      for (const auto& result : run_probe(config, parts)) {
        const at::Tensor share = (result.gradient.to(at::kDouble) - exact).abs() / bound;
        CHECK(share.max().item<double>() <= 1);
      }
    }
  }
}

TEST_CASE("the wire carries precision.reduce between the replicas of a tied parameter") {
  for (const auto reduce : {at::kFloat, at::kBFloat16}) {
    test::run_ranks(2, [&](Communicator& world) {
      const auto log = std::make_shared<std::vector<test::WireRecord>>();
      test::RecordingCommunicator comm(world.split(0, world.rank()), log);
      ParityRow row{.ranks = 2, .accumulation = 2, .pipeline = 2};
      row.parallel.precision = precision(at::kBFloat16, at::kFloat, reduce);
      const ParityWork work = token_work(toy_language_model(), {.rows = 4, .steps = 1});
      run_parity(comm, row, work);
      const auto reductions = gradient_reductions(*log);
      test::require(!reductions.empty(), "both ends hold the table");
      for (const auto& record : reductions) {
        test::require(record.values.scalar_type() == reduce, record.operation, " of ",
                      record.values.scalar_type(), " for ", reduce);
      }
    });
  }
}
