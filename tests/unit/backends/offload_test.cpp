// SPDX-License-Identifier: MIT
// Properties of offloading besides its numbers (tests/parity/offload_test.cpp): memory, rejections,
// errors of its threads, and completion of a running step before anyone reads its results.
#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "backends/offload/both_steps.h"
#include "backends/offload/host_share.h"
#include "backends/offload/step_choice.h"
#include "lib/testing/player.h"
#include "tessera/core/error.h"
#include "tessera/optim/adamw.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

const ToyConfig kOffloaded{.vocabulary = 512, .hidden = 256, .layers = 6};
constexpr double kOffloadedLayer = 4.0 * 256 * 256, kEmbedding = 2.0 * 256 * 256;
constexpr double kOffloadedParameters = 6 * kOffloadedLayer + kEmbedding;

ParallelConfig offloaded(const std::string& strategy, at::ScalarType dtype,
                         Offload what = Offload::kOptimizer,
                         OffloadStep step = OffloadStep::kHost) {
  ParallelConfig config{.strategy = strategy};
  config.precision.parameter = dtype;
  config.persistence_threshold = 1000;
  config.offload = {.what = what, .step = step, .threads = 2, .chunk_numel = 100'000};
  return config;
}

// One rank of a data axis.
Player attached(Communicator& comm, const ParallelConfig& config,
                const OptimizerFactory& optimizer = make_adamw({}),
                const ToyConfig& model = kOffloaded) {
  return Player(comm, {toy_language_model(model), {.data = comm.size()}, config, optimizer});
}

std::vector<MicroBatch> batch_of(const ToyConfig& config, uint64_t seed = 1) {
  return {toy_micro_batch(config, 2, 3, seed)};
}

void require_bytes(const std::string& what, double actual, double expected) {
  test::require(std::abs(actual - expected) <= 0.05 * expected, what, " is ", actual,
                " bytes, the formula says ", expected);
}

std::string refusal(int ranks, const ParallelConfig& config) {
  try {
    test::run_ranks(ranks, [&](Communicator& comm) { attached(comm, config); });
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

// Throws in update n.
class Failing : public Optimizer {
 public:
  size_t range_count() const override { return 0; }
  void begin_step(const StepScalars&) override { ++steps_; }
  void update(size_t, size_t) override { update(std::span<const ExternalRange>()); }
  void update(std::span<const ExternalRange>) const override {
    check(steps_ < 2, ErrorCode::kDataLoss, "planted failure");
  }
  std::vector<std::string> state_names() const override { return {"a"}; }
  NamedTensors state(size_t) const override { return {}; }
  at::Tensor step_count() const override { return {}; }
  int64_t state_bytes() const override { return 0; }

 private:
  int steps_ = 0;
};

void check_memory(Communicator& comm, const std::string& name, at::ScalarType dtype, Offload what,
                  OffloadStep step) {
  const int64_t begin = CountingAllocator::live_bytes();
  const Player player = attached(comm, offloaded(name, dtype, what, step));
  Strategy& strategy = player.strategy();
  for (int i = 0; i < 2; ++i) {
    strategy.forward_backward(batch_of(kOffloaded));
    strategy.grad_norm_squared();
    strategy.optimizer_step(1e-3);
  }
  strategy.offload_report();
  const double live = double(CountingAllocator::live_bytes() - begin);
  const StrategyMemory memory = strategy.memory();

  const bool params = what == Offload::kOptimizerAndParameters, fp32 = dtype == at::kFloat;
  const bool on_host = step == OffloadStep::kHost;
  const double n = comm.size(), e = fp32 ? 4 : 2, share = kOffloadedParameters / n;
  // Two moments; masters, except for fp32 parameters updated in place; the gradient's host buffer,
  // in which 16-bit values return.
  double host = share * (8 + (on_host ? 4 + e : fp32 ? 0 : 4)) + (params ? share * e : 0);
  // The embedding's fp32 shard is its own master; the layers' units have small parameters on the
  // device.
  if (params && fp32 && on_host) host -= kEmbedding / n * 4;
  const double parameters = params ? 0 : kOffloadedParameters * e / (name == "zero3" ? n : 1);
  const double gradients = kOffloadedParameters * e / (name == "zero1" ? 1 : n);
  const double in_flight = (2 * kOffloadedLayer + kEmbedding) * e;
  double buffers = name == "zero3" ? 2 * in_flight : name == "zero2" ? in_flight : 0;
  if (!on_host) {  // the ring of chunks
    const double masters = fp32 && !params ? 0 : 4, low = params && !fp32 ? 2 : 0;
    buffers += 3 * std::min(100'000.0, kOffloadedLayer / n) * (8 + masters + low);
  }
  require_bytes("host_bytes", double(memory.host_bytes), host);
  test::require(memory.pinned_bytes == 0, "nothing is pinned without a GPU");
  test::require(memory.optimizer_bytes == 0, "no optimizer state on the device");
  if (params) {
    test::require(double(memory.parameter_bytes) < 0.02 * kOffloadedParameters * e,
                  "only small parameters stay on the device: ", memory.parameter_bytes);
  } else {
    require_bytes("parameter_bytes", double(memory.parameter_bytes), parameters);
  }
  require_bytes("gradient_bytes", double(memory.gradient_bytes), gradients);
  if (buffers > 0) require_bytes("buffer_bytes", double(memory.buffer_bytes), buffers);
  require_bytes("allocated", live, host + parameters + gradients + buffers);
}

}  // namespace

TEST_CASE("offloaded memory follows the formula, by the strategy's and the allocator's account") {
  CountingAllocator counting;
  constexpr auto kHost = OffloadStep::kHost, kDevice = OffloadStep::kDevice;
  constexpr auto kState = Offload::kOptimizer, kAll = Offload::kOptimizerAndParameters;
  const std::vector<std::tuple<const char*, Offload, OffloadStep>> rows{
      {"zero1", kState, kHost}, {"zero2", kState, kHost},   {"zero3", kState, kHost},
      {"zero3", kAll, kHost},   {"zero1", kState, kDevice}, {"zero3", kState, kDevice},
      {"zero3", kAll, kDevice}};
  for (const int ranks : {1, 4}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const auto& [strategy, what, step] : rows) {
        INFO(strategy << " on " << ranks << " ranks in " << dtype);
        test::run_ranks(ranks, [&, strategy_name = std::string(strategy), what = what,
                                step = step](Communicator& comm) {
          check_memory(comm, strategy_name, dtype, what, step);
        });
      }
    }
  }
}

TEST_CASE("the state of the first units that have room stays on the device, and no more") {
  constexpr double kLayerState = 12 * kOffloadedLayer,
                   kTableState = 12 * kEmbedding;  // bf16, one rank
  for (const auto& [bytes, stays] : {std::pair(0.9 * kTableState, 0.0),
                                     {1.2 * (kTableState + kLayerState), kTableState + kLayerState},
                                     {20 * kOffloadedParameters, 12 * kOffloadedParameters}}) {
    for (const auto step : {OffloadStep::kHost, OffloadStep::kDevice}) {
      INFO(bytes << " bytes");
      test::run_ranks(1, [&, bytes = bytes, stays = stays](Communicator& comm) {
        ParallelConfig config = offloaded("zero1", at::kBFloat16, Offload::kOptimizer, step);
        config.offload.device_bytes = static_cast<int64_t>(bytes);
        const Player player = attached(comm, config);
        player.strategy().forward_backward(batch_of(kOffloaded));
        player.strategy().optimizer_step(1e-3);
        const StrategyMemory memory = player.strategy().memory();
        test::require(double(memory.optimizer_bytes) <= bytes, "more than allowed");
        test::require(
            std::abs(double(memory.optimizer_bytes) - stays) <= 0.02 * 12 * kOffloadedParameters,
            "optimizer_bytes is ", memory.optimizer_bytes);
        const double element = step == OffloadStep::kHost ? 14 : 12;
        const double left = 12 * kOffloadedParameters - stays;
        test::require(std::abs(double(memory.host_bytes) - left / 12 * element) <=
                          0.05 * 12 * kOffloadedParameters,
                      "host_bytes is ", memory.host_bytes);
      });
    }
  }
}

TEST_CASE("whoever looks after a step sees it finished") {
  const ToyConfig model;
  using Case = std::tuple<const char*, Offload, OffloadStep>;
  for (const auto& [name, what, step_on] :
       {Case("zero1", Offload::kOptimizer, OffloadStep::kHost),
        Case("zero3", Offload::kOptimizerAndParameters, OffloadStep::kHost),
        Case("fsdp", Offload::kOptimizer, OffloadStep::kDevice),
        Case("zero3", Offload::kOptimizerAndParameters, OffloadStep::kDevice),
        Case("zero2", Offload::kOptimizer, OffloadStep::kBoth),
        Case("zero3", Offload::kOptimizerAndParameters, OffloadStep::kBoth)}) {
    test::run_ranks(2, [&, strategy_name = std::string(name), what = what,
                        step_on = step_on](Communicator& comm) {
      ParallelConfig device = offloaded(strategy_name, at::kBFloat16, Offload::kNone);
      const Player a = attached(comm, offloaded(strategy_name, at::kBFloat16, what, step_on),
                                make_adamw({}), model);
      const Player b = attached(comm, device, make_adamw({}), model);
      for (uint64_t step = 0; step < 4; ++step) {
        at::Tensor norms[2], losses[2];
        size_t i = 0;
        for (Strategy* strategy : {&a.strategy(), &b.strategy()}) {
          strategy->forward_backward(batch_of(model, step));
          norms[i] = strategy->grad_norm_squared();
          // Uses this step's clip factor, not the previous one's.
          strategy->scale_gradients(at::full({}, 1.0 / double(step + 1)));
          // The third step is skipped.
          strategy->optimizer_step(0.01, at::full({}, step == 2 ? 1.0F : 0.0F));
          if (step == 3) strategy->optimizer_step(0.01);  // two in a row
          if (step % 2 == 1) losses[i] = strategy->evaluate(batch_of(model, 77)).loss;
          ++i;
        }
        test::require_bit_equal(norms[0], norms[1], "norm");
        if (losses[0].defined()) test::require_bit_equal(losses[0], losses[1], "evaluation");
        const auto mine = parameters_of(a.strategy()), other = parameters_of(b.strategy());
        for (const auto& [parameter, value] : other) {
          test::require_bit_equal(mine.at(parameter), value, parameter);
        }
      }
      const OffloadReport report = a.strategy().offload_report();
      test::require(
          report.bytes_to_host > 0 && report.step_s > 0 && report.hidden >= 0 && report.hidden <= 1,
          "the report has figures");
      test::require(b.strategy().offload_report().step_s == 0,
                    "nothing is reported without offloading");
      a.strategy().forward_backward(batch_of(model));
      a.strategy().optimizer_step(0.01);  // destroyed while it may still run
    });
  }
}

TEST_CASE("the report is of the latest step that was used, and of a first step when it is done") {
  test::run_ranks(2, [](Communicator& comm) {
    for (const auto step_on : {OffloadStep::kHost, OffloadStep::kDevice, OffloadStep::kBoth}) {
      const Player player =
          attached(comm, offloaded("zero3", at::kBFloat16, Offload::kOptimizer, step_on));
      Strategy& strategy = player.strategy();
      test::require(strategy.offload_report().step_s == 0, "nothing before the first step");
      const auto step = [&] {
        strategy.forward_backward(batch_of(kOffloaded));
        strategy.optimizer_step(0.01);
        return strategy.offload_report();
      };
      const OffloadReport first = step(), second = step();  // the second is still running
      test::require(first.step_s > 0, "the first step took time");
      test::require(second.bytes_to_host == first.bytes_to_host, "bytes a step");
      strategy.evaluate(batch_of(kOffloaded));
      const OffloadReport used = strategy.offload_report();
      test::require(used.step_s > 0 && used.step_s != first.step_s, "the second step's own time");
      test::require(used.hidden >= 0 && used.hidden <= 1, "a share");
    }
  });
}

TEST_CASE("where the update runs is decided by costs that all ranks agree on") {
  test::run_ranks(3, [](Communicator& comm) {
    const std::vector<ParameterUnit> units;
    const UnitOptimizerContext context{
        .units = units, .parameter_dtype = at::kBFloat16, .expected_numel = 100'000};
    const StepCosts costs =
        measure_step_costs(context, {.threads = 1}, comm, find_host_share(comm));
    test::require(costs.host > 1e-12 && costs.host < 1e-3, "seconds an element: ", costs.host);
    test::require(costs.device == 0, "the CPU has no link");
    const at::Tensor most = at::full({}, costs.host, at::kDouble);
    comm.all_reduce(most, ReduceOp::kMax).wait();
    test::require(most.item<double>() == costs.host, "the slowest rank's everywhere");
  });
}

TEST_CASE(
    "the update runs on both sides at once where that saves a tenth, else on the faster one") {
  using enum OffloadStep;
  CHECK(fastest_step({.host = 2, .device = 3}) == kHost);
  CHECK(fastest_step({.host = 3, .device = 2}) == kDevice);
  // Both lose a fifth: 1 / (1 / 2.4 + 1 / 3.6) = 1.44.
  CHECK(fastest_step({2, 3, 2.4, 3.6}) == kBoth);
  // They share one memory bus: 1 / (1 / 4 + 1 / 4) = 2.
  CHECK(fastest_step({2, 3, 4, 4}) == kHost);
  CHECK(fastest_step({3, 2, 4, 4}) == kDevice);
  CHECK(fastest_step({2, 8, 2.3, 9}) == kHost);  // 1.83, less than a tenth
  CHECK(StepCosts{2, 3, 2.4, 3.6}.both() == Approx(1.44));
}

TEST_CASE("units are divided in the order of forward so that both sides finish together") {
  UnitDivision equal({3, 1});
  int64_t on_host = 0;
  for (int unit = 0; unit < 64; ++unit) {
    on_host += equal.next_side(1000) == 0 ? 1 : 0;
    CHECK(std::abs(3 * on_host - (unit + 1 - on_host)) <= 3);  // at any time
  }
  CHECK(on_host == 16);
  // A table as large as five layers: the other side has layers until it has caught up.
  UnitDivision table({1, 1});
  CHECK(table.next_side(5000) == 0);
  for (int layer = 0; layer < 5; ++layer) CHECK(table.next_side(1000) == 1);
  CHECK(table.next_side(1000) == 0);
  CHECK(table.next_side(1000) == 1);
}

TEST_CASE("an error of the host's threads reaches the rank with its type") {
  const ToyConfig model;
  test::run_ranks(2, [&](Communicator& comm) {
    const auto factory = [](const std::vector<OptimizerRange>&) -> std::unique_ptr<Optimizer> {
      return std::make_unique<Failing>();
    };
    const Player player = attached(comm, offloaded("zero1", at::kBFloat16), factory, model);
    Strategy& strategy = player.strategy();
    strategy.forward_backward(batch_of(model));
    strategy.optimizer_step(0.1);
    strategy.forward_backward(batch_of(model));
    strategy.optimizer_step(0.1);
    const std::string message = test::require_error(
        ErrorCode::kDataLoss, [&] { strategy.evaluate(batch_of(model)); }, "evaluate");
    test::require(message.find("planted") != std::string::npos, message);
    test::require_error(
        ErrorCode::kDataLoss, [&] { strategy.optimizer_step(0.1); }, "the next step");
  });
}

TEST_CASE("too little host memory is an error on every rank before anything is allocated") {
  test::run_ranks(3, [](Communicator& comm) {
    const HostShare share = find_host_share(comm);
    test::require(!share.cores.empty(), "every rank has a core");
    require_host_memory(comm, share.host, 1000, "nothing much");
    const int64_t wanted = comm.rank() == 1 ? int64_t{1} << 55 : 10;
    const std::string message = test::require_error(
        ErrorCode::kResourceExhausted,
        [&] { require_host_memory(comm, share.host, wanted, "a test"); }, "one greedy rank");
    test::require(message.find("36028797018963988") != std::string::npos, message);
  });
}

TEST_CASE("what cannot be offloaded is refused by name") {
  using tessera::test::contains;
  for (const std::string name : {"single", "zero1", "zero2"}) {
    CHECK_THAT(refusal(1, offloaded(name, at::kFloat, Offload::kOptimizerAndParameters)),
               contains(name) && contains("zero3 or fsdp"));
  }
  CHECK_THAT(refusal(2, offloaded("ddp", at::kFloat)), contains("ddp") && contains("zero1"));
  ParallelConfig config = offloaded("fsdp", at::kFloat, Offload::kOptimizerAndParameters);
  config.shard_ranks = 1;
  CHECK_THAT(refusal(2, config), contains("shard_ranks 1"));
  config = offloaded("zero1", at::kFloat);
  config.offload.threads = -1;
  CHECK_THAT(refusal(2, config), contains("threads is -1"));
  config = offloaded("zero1", at::kFloat);
  config.offload.device_bytes = -1;
  CHECK_THAT(refusal(2, config), contains("device_bytes is -1"));
}
