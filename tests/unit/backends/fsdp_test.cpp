// SPDX-License-Identifier: MIT
// Effects of FSDP's options on memory and traffic per rank.
#include <ATen/ATen.h>

#include <algorithm>
#include <memory>

#include "lib/testing/player.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/ranks.hpp"
#include "tests/support/recording_communicator.hpp"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

const ToyConfig kConfig{.vocabulary = 256, .hidden = 128, .layers = 6};
constexpr double kElement = 4;
constexpr double kLayer = 4.0 * 128 * 128, kTable = 2.0 * 128 * 128;
constexpr double kParameters = kTable + 6 * kLayer;

struct Measured {
  StrategyMemory memory;
  double peak_of_attach = 0, live_after_attach = 0, sent = 0;
};

Measured measure(Communicator& comm, ParallelConfig config, int accumulation = 1) {
  config.strategy = "fsdp";
  const int64_t begin = CountingAllocator::live_bytes();
  CountingAllocator::reset_peak();
  const Player player(comm, {toy_language_model(kConfig), {.data = comm.size()}, config});
  Strategy& strategy = player.strategy();
  Measured measured;
  measured.live_after_attach = static_cast<double>(CountingAllocator::live_bytes() - begin);
  measured.peak_of_attach = static_cast<double>(CountingAllocator::peak_bytes() - begin);
  measured.memory = strategy.memory();
  const std::vector<MicroBatch> batches(static_cast<size_t>(accumulation),
                                        toy_micro_batch(kConfig, 1, 2, 1));
  auto step = [&] {
    strategy.forward_backward(batches);
    strategy.optimizer_step(1e-3);
  };
  step();
  const int64_t before = player.mesh().axis(Axis::kData).bytes_sent();
  step();
  measured.sent = static_cast<double>(player.mesh().axis(Axis::kData).bytes_sent() - before);
  return measured;
}

void require_close(const std::string& what, double actual, double expected) {
  test::require(std::abs(actual - expected) <= 0.05 * expected + 200, what, " is ", actual,
                ", the formula says ", expected);
}

}  // namespace

TEST_CASE("fsdp keeps whole parameters only in fixed buffers, or until the step when asked") {
  CountingAllocator counting;
  for (int ranks : {2, 4}) {
    test::run_ranks(ranks, [&](Communicator& comm) {
      const double n = comm.size(), share = (n - 1) / n;
      const Measured resharding = measure(comm, {});
      const double in_flight = (2 * kLayer + kTable) * kElement;
      require_close("parameter bytes", double(resharding.memory.parameter_bytes),
                    kParameters * kElement / n);
      require_close("buffer bytes", double(resharding.memory.buffer_bytes), 2 * in_flight);

      const Measured keeping = measure(comm, {.reshard_after_forward = false}, 3);
      require_close("buffer bytes without resharding", double(keeping.memory.buffer_bytes),
                    kParameters * kElement + in_flight);
      // One gather per step for any number of micro-batches, one reduce-scatter per micro-batch.
      require_close("bytes sent without resharding", keeping.sent,
                    (1 + 3) * kParameters * kElement * share);

      const Measured boundary =
          measure(comm, {.reduce_at_boundary = true, .reshard_after_forward = false}, 3);
      require_close("gradient bytes without sync", double(boundary.memory.gradient_bytes),
                    kParameters * kElement);
      require_close("bytes sent without sync", boundary.sent, 2 * kParameters * kElement * share);
    });
  }
}

TEST_CASE("blocks wrapped together are gathered together, with a bounded number in flight") {
  CountingAllocator counting;
  test::run_ranks(2, [&](Communicator& comm) {
    // Two layers per unit (the first unit would also take the embedding's rest, which is empty).
    const int64_t two_layers = static_cast<int64_t>(1.5 * kLayer);
    for (int prefetch : {0, 1, 2}) {
      const Measured measured =
          measure(comm, {.prefetch_blocks = prefetch, .unit_numel = two_layers});
      const double parameters = ((prefetch + 1) * 2 * kLayer + kTable) * kElement;
      const double gradients = (2 * 2 * kLayer + kTable) * kElement;
      require_close("buffer bytes", double(measured.memory.buffer_bytes), parameters + gradients);
    }
  });
}

TEST_CASE("fsdp builds a model without any rank ever holding more than one unit in full") {
  CountingAllocator counting;
  test::run_ranks(4, [&](Communicator& comm) {
    for (int64_t unit : {int64_t{0}, static_cast<int64_t>(1.5 * kLayer)}) {
      const Measured measured = measure(comm, {.unit_numel = unit});
      // A unit as built and its flat copy, besides persistent memory.
      const double limit =
          measured.live_after_attach + 2.2 * kElement * kLayer * (unit == 0 ? 1 : 2);
      test::require(measured.peak_of_attach <= limit, "peak while building is ",
                    measured.peak_of_attach, ", limit ", limit);
    }
  });
}

TEST_CASE("hybrid sharding: a copy of the model in every group of neighbouring ranks") {
  test::run_ranks(4, [&](Communicator& comm) {
    const Measured hybrid = measure(comm, {.reshard_after_forward = false, .shard_ranks = 2});
    require_close("parameter bytes", double(hybrid.memory.parameter_bytes),
                  kParameters * kElement / 2);
    require_close("optimizer bytes", double(hybrid.memory.optimizer_bytes), kParameters * 8 / 2);
    const Measured replicated = measure(comm, {.shard_ranks = 1});
    require_close("parameter bytes of replicas", double(replicated.memory.parameter_bytes),
                  kParameters * kElement);
    test::require(replicated.memory.buffer_bytes == 0, "what is not sharded needs no buffers");
    require_close("bytes sent by replicas", replicated.sent, 2 * kParameters * kElement * 3 / 4);
  });
}

TEST_CASE("what a step needs first is gathered within the update before it") {
  for (const std::string strategy : {"zero3", "fsdp"}) {
    test::run_ranks(2, [&](Communicator& comm) {
      const auto log = std::make_shared<std::vector<test::WireRecord>>();
      test::RecordingCommunicator recorded(comm.split(0, comm.rank()), log);
      ParallelConfig config{.strategy = strategy};
      if (strategy == "zero3") config.persistence_threshold = 0;
      const Player player(recorded, {toy_language_model(kConfig), {.data = 2}, config});
      Strategy& strategy_of_rank = player.strategy();
      const std::vector<MicroBatch> batches{toy_micro_batch(kConfig, 1, 2, 1)};
      const auto gathers = [&] {
        const auto is_gather = [](const auto& record) { return record.operation == "all_gather"; };
        const auto count = std::ranges::count_if(*log, is_gather);
        log->clear();
        return count;
      };
      std::vector<std::ptrdiff_t> of_updates, of_passes;
      for (int step = 0; step < 3; ++step) {
        strategy_of_rank.forward_backward(batches);
        of_passes.push_back(gathers());
        strategy_of_rank.optimizer_step(1e-3);
        of_updates.push_back(gathers());
      }
      test::require(of_updates[1] > 0, "an update gathers nothing");
      test::require(of_passes[1] < of_passes[0], "the pass behind an update gathers all again");
      test::require(of_passes[2] == of_passes[1] && of_updates[2] == of_updates[1],
                    "steps gather differently");
    });
  }
}
