// SPDX-License-Identifier: MIT
// Step times with distant ranks: strategies and pipelines on in-process ranks with virtual clocks,
// given durations of blocks and messages.
#include "tests/support/virtual_time.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/pipeline/simulator.h"
#include "lib/sharding/messages.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/core/deferred_gradients.h"
#include "tessera/optim/sgd.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::test;

namespace {

// Seconds of a block's forward, backward, and weight gradients within backward.
struct Seconds {
  double forward = 1, backward = 2, weights = 1;
};

struct TimedFunction : torch::autograd::Function<TimedFunction> {
  using Context = torch::autograd::AutogradContext;
  static at::Tensor forward(Context* context, const at::Tensor& hidden, const at::Tensor& weight,
                            int64_t backward) {
    context->save_for_backward({weight});
    context->saved_data["backward"] = backward;
    return hidden.clone();
  }
  static torch::autograd::variable_list backward(Context* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto* work =
        reinterpret_cast<std::function<bool()>*>(context->saved_data["backward"].toInt());
    const bool here = (*work)();
    const at::Tensor weight = context->get_saved_variables()[0];
    return {gradients[0], here ? at::ones_like(weight) : at::Tensor(), at::Tensor()};
  }
};

// hidden -> hidden, with a weight.
class Timed final : public Block {
 public:
  Timed(VirtualClock& clock, const Seconds& seconds, int64_t numel)
      : clock_(clock), seconds_(seconds), weight_(at::ones({numel}).set_requires_grad(true)) {}
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& batch,
                     const BlockContext& context) override {
    clock_.pass(seconds_.forward);
    const auto deferred = context.deferred_gradients;
    if (deferred) deferred->promise();
    backward_.push_back(std::make_unique<std::function<bool()>>([this, deferred] {
      clock_.pass(seconds_.backward - (deferred ? seconds_.weights : 0));
      if (deferred) {
        deferred->add([this] {
          clock_.pass(seconds_.weights);
          weight_.mutable_grad().add_(1);
        });
      }
      return deferred == nullptr;
    }));
    const at::Tensor input =
        hidden.defined() ? hidden : batch.input_ids.to(at::kFloat).unsqueeze(-1);
    return TimedFunction::apply(input, weight_, reinterpret_cast<int64_t>(backward_.back().get()));
  }
  bool defers_gradients(const at::Tensor&, const BlockContext&) const override { return true; }
  std::vector<Parameter> parameters() override { return {{"weight", weight_}}; }

 private:
  VirtualClock& clock_;
  const Seconds seconds_;
  at::Tensor weight_;
  std::vector<std::unique_ptr<std::function<bool()>>> backward_;
};

// Sum of its inputs, in no time.
class Sum final : public Block {
 public:
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch&, const BlockContext&) override {
    return hidden.sum().reshape({1});
  }
  std::vector<Parameter> parameters() override { return {}; }
};

struct TimedModel {
  int blocks = 8;
  Seconds seconds;
  int64_t numel = 32768;  // elements of a block's weight; much larger than control messages
  int micro_batches = 1;
};

ModelSpec model_of(const TimedModel& work, VirtualClock& clock) {
  ModelSpec model;
  for (int i = 0; i < work.blocks; ++i) {
    model.blocks.push_back({concat("h.", i),
                            [&clock, work](const BuildContext&) -> std::unique_ptr<Block> {
                              return std::make_unique<Timed>(clock, work.seconds, work.numel);
                            },
                            BlockCost{work.numel, 1}});
  }
  model.blocks.push_back({"loss", [](const BuildContext&) { return std::make_unique<Sum>(); }});
  return model;
}

// Seconds of the last of three steps on the slowest rank.
double step_seconds(const ParallelConfig& config, const MeshExtents& extents,
                    const TimedModel& work, const VirtualLink& link) {
  const int ranks = extents.pipeline * extents.data * extents.tensor;
  std::vector<double> seconds(static_cast<size_t>(ranks));
  std::vector<VirtualClock> clocks(static_cast<size_t>(ranks), VirtualClock(link));
  run_ranks(ranks, [&](Communicator& local) {
    const auto rank = static_cast<size_t>(local.rank());
    VirtualClock& clock = clocks[rank];
    VirtualCommunicator world(local, clock);
    const DeviceMesh mesh(world, extents);
    const auto strategy = make_strategy(config, mesh);
    strategy->attach(model_of(work, clock), {}, make_sgd({}));
    MicroBatch batch;
    batch.input_ids = at::ones({1, 4}, at::kLong);
    batch.target_count = 4;
    const std::vector<MicroBatch> batches(static_cast<size_t>(work.micro_batches), batch);
    for (int step = 0; step < 3; ++step) {
      world.barrier();
      const double before = clock.now();
      strategy->forward_backward(batches);
      strategy->optimizer_step(0.1);
      world.barrier();
      seconds[rank] = clock.now() - before;
    }
  });
  return *std::ranges::max_element(seconds);
}

ParallelConfig config_of(const std::string& strategy, const TimedModel& work) {
  ParallelConfig config{.strategy = strategy, .bucket_bytes = 4 * work.numel};
  config.persistence_threshold = 0;
  return config;
}

// Default message size on such a link.
int64_t ruled_message_bytes(const VirtualLink& link, int ranks) {
  return least_message_bytes(
      ranks,
      {.start_us = 0, .rank_us = link.latency * 1e6, .bytes_per_us = link.bytes_per_second / 1e6});
}

// A link on which a block's gradients take this long over two ranks: half of the bytes in each
// direction.
VirtualLink link_of(const TimedModel& work, double seconds) {
  return {.bytes_per_second = 4.0 * double(work.numel) / seconds};
}

double ring(int ranks) { return 2.0 * (ranks - 1) / ranks; }

}  // namespace

TEST_CASE("sums that fit beside backward cost the last one, at every number of ranks") {
  const TimedModel work;
  const double compute = work.blocks * (work.seconds.forward + work.seconds.backward);
  for (const int ranks : {1, 2, 4, 8}) {
    INFO(ranks << " ranks");
    const double step =
        step_seconds(config_of("ddp", work), {.data = ranks}, work, link_of(work, 0.5));
    CHECK(step == Approx(compute + 0.5 * ring(ranks)).epsilon(1e-3));
  }
}

TEST_CASE("sums that do not fit beside backward follow each other on the link") {
  const TimedModel work;
  const double before = work.blocks * work.seconds.forward + work.seconds.backward;
  for (const int ranks : {2, 4, 8}) {
    INFO(ranks << " ranks");
    const double step =
        step_seconds(config_of("ddp", work), {.data = ranks}, work, link_of(work, 5));
    CHECK(step == Approx(before + work.blocks * 5 * ring(ranks)).epsilon(1e-3));
  }
}

TEST_CASE("without overlap every sum is waited for") {
  const TimedModel work;
  ParallelConfig config = config_of("ddp", work);
  config.overlap = false;
  const double compute = work.blocks * (work.seconds.forward + work.seconds.backward);
  const double step = step_seconds(config, {.data = 4}, work, link_of(work, 0.5));
  CHECK(step == Approx(compute + work.blocks * 0.5 * ring(4)).epsilon(1e-3));
}

TEST_CASE("gathers of parameters run ahead of the blocks that need them") {
  TimedModel work;
  const double compute = work.blocks * (work.seconds.forward + work.seconds.backward);
  for (const char* strategy : {"zero3", "fsdp"}) {
    for (const int ranks : {2, 4, 8}) {
      INFO(strategy << " on " << ranks << " ranks");
      // An all-gather or reduce-scatter moves half of an all-reduce's bytes.
      const double each = 0.25 * ring(ranks);
      const double step =
          step_seconds(config_of(strategy, work), {.data = ranks}, work, link_of(work, 0.5));
      // Exposed: the step's first gather, and the last block's reduction.
      CHECK(step == Approx(compute + 2 * each).epsilon(0.02));
    }
  }
}

TEST_CASE("latency that grows with the ranks is paid for every message, so messages are joined") {
  const TimedModel work;
  ParallelConfig alone = config_of("ddp", work), joined = alone;
  joined.bucket_bytes *= work.blocks;
  const double before = work.blocks * work.seconds.forward + work.seconds.backward;
  const double compute = work.blocks * (work.seconds.forward + work.seconds.backward);
  const VirtualLink link{.latency = 1};
  for (const int ranks : {4, 8}) {
    INFO(ranks << " ranks");
    // Besides gradients: the batch counts, the loss, and the barrier after the step.
    CHECK(step_seconds(alone, {.data = ranks}, work, link) ==
          Approx(before + (work.blocks + 3) * ranks));
    CHECK(step_seconds(joined, {.data = ranks}, work, link) == Approx(compute + 4 * ranks));
  }
}

// A block's message takes 1.5 s for 64 ranks and 0.25 s for its bytes, more than its forward; six
// blocks together take 3 s.
TEST_CASE("messages that grow with the ranks hide where a message for every block cannot") {
  constexpr int kRanks = 64;
  const TimedModel work{.blocks = 24};
  const double bytes = 4.0 * double(work.numel), share = double(kRanks - 1) / kRanks;
  const VirtualLink link{.latency = 1.5 / kRanks, .bytes_per_second = bytes / 0.25};
  const double compute = work.blocks * (work.seconds.forward + work.seconds.backward);
  const double alone = 1.5 + 0.25 * share, joined = 1.5 + 6 * 0.25 * share;
  // The batch counts, the loss, and the barrier after the step.
  const double told = 3 * 1.5;
  const int64_t ruled = ruled_message_bytes(link, kRanks);
  CHECK(double(ruled) == Approx(6 * bytes));
  for (const char* strategy : {"zero3", "fsdp"}) {
    INFO(strategy);
    ParallelConfig config = config_of(strategy, work);
    config.coalesce_bytes = 1;
    const double by_block = step_seconds(config, {.data = kRanks}, work, link);
    config.coalesce_bytes = ruled;
    const double by_message = step_seconds(config, {.data = kRanks}, work, link);
    // Exposed: only the step's first gather and last reduction.
    CHECK(by_message == Approx(compute + 2 * joined + told).epsilon(0.05));
    // Each block waits for its two gathers and its reduction.
    CHECK(by_block >= work.blocks * 3 * alone * 0.95);
    CHECK(by_block > 1.5 * by_message);
  }
}

TEST_CASE("pipelines take the time that the simulator says, and messages delay them as it says") {
  const std::vector<Seconds> costs{{1, 2, 1}, {1, 2.5, 0.75}};
  for (const Seconds& seconds : costs) {
    for (const double latency : {0.0, 0.25}) {
      for (const char* schedule : {"gpipe", "1f1b", "zbh1"}) {
        for (const int stages : {2, 4}) {
          const TimedModel work{.blocks = stages, .seconds = seconds, .micro_batches = 8};
          ParallelConfig config = config_of("ddp", work);
          config.pipeline.schedule = schedule;
          config.pipeline.balance = "parameters";
          const double step =
              step_seconds(config, {.pipeline = stages}, work, {.latency = latency});
          SimulationOptions options;
          options.transfer = latency;
          options.costs.assign(static_cast<size_t>(stages),
                               {seconds.forward, seconds.backward, seconds.weights});
          const Simulation simulation =
              simulate(make_schedule(schedule, stages, work.micro_batches, 1), options);
          INFO(schedule << " on " << stages << " stages, latency " << latency << ": " << step
                        << " s, simulated " << simulation.makespan);
          // Plus control messages before and after.
          CHECK(step >= simulation.makespan * (1 - 1e-6));
          CHECK(step <= simulation.makespan + 8 * stages * latency + 1e-6);
        }
      }
    }
  }
}
