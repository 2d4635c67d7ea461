// SPDX-License-Identifier: MIT
// Offloading does not change numbers: every row has the bits of the same row with everything on the
// device.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "tessera/core/error.h"
#include "tessera/models/language_model.h"
#include "tessera/optim/sgd.h"
#include "tests/parity/parity.h"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

ParityWork toy_work(const ToyConfig& config = {}, int64_t rows = 24) {
  return token_work(toy_language_model(config), {.vocabulary = config.vocabulary, .rows = rows});
}

// NaN equals NaN: a skipped step reports it.
bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }
bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.eq(b).logical_or(a.isnan().logical_and(b.isnan())).all().item<bool>();
}

// "" or the first difference in bits.
std::string bit_difference(const RankRecord& actual, const RankRecord& expected) {
  if (actual.steps.size() != expected.steps.size()) return "number of steps";
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    const StepRecord &step = actual.steps[i], &other = expected.steps[i];
    if (!same(step.loss, other.loss) || !same(step.norm, other.norm) ||
        !same(step.clip, other.clip)) {
      return concat("step ", i + 1, ": loss ", step.loss, ", norm ", step.norm, ", clip ",
                    step.clip, "; expected ", other.loss, ", ", other.norm, ", ", other.clip);
    }
  }
  const Named &gradients = actual.steps.back().gradients, &others = expected.steps.back().gradients;
  for (const auto& [name, value] : expected.final) {
    if (!same(actual.final.at(name), value)) return "parameter " + name;
    if (!same(gradients.at(name), others.at(name))) return "gradient " + name;
  }
  return actual.evaluations.back().loss == expected.evaluations.back().loss
             ? ""
             : "evaluation after the last step";
}

// Every kind of offloading that the strategy allows.
void check_offloaded(ParityRow row, const ParityWork& work, int64_t chunk_numel = 100,
                     bool pageable = false) {
  std::vector<std::pair<OffloadStep, bool>> ways{
      {OffloadStep::kHost, true}, {OffloadStep::kDevice, true}, {OffloadStep::kBoth, true}};
  if (pageable) ways.insert(ways.end(), {{OffloadStep::kHost, false}, {OffloadStep::kAuto, false}});
  row.parallel.persistence_threshold = 20;
  const auto expected = run_on_threads(row, work);
  const bool keeps_shards = row.parallel.strategy == "zero3" || row.parallel.strategy == "fsdp";
  for (const Offload what : {Offload::kOptimizer, Offload::kOptimizerAndParameters}) {
    if (what == Offload::kOptimizerAndParameters && !keeps_shards) continue;
    // Half of the state may stay on the device, in whole units.
    const int64_t half =
        std::ranges::min(expected, {},
                         [](const RankRecord& rank) { return rank.memory.optimizer_bytes; })
            .memory.optimizer_bytes /
        2;
    for (const auto& [step, pin] : ways) {
      for (const int64_t device_bytes : {int64_t{0}, half}) {
        const bool shares = device_bytes > 0 && what == Offload::kOptimizer;
        if (device_bytes > 0 && !shares) continue;
        // Chunks that end inside and at the ends of parameters, more than the ring has slots.
        row.parallel.offload = {.what = what,
                                .step = step,
                                .pin_memory = pin,
                                .threads = 2,
                                .device_bytes = device_bytes,
                                .chunk_numel = chunk_numel};
        INFO(row.name());
        const auto actual = run_on_threads(row, work);
        for (size_t rank = 0; rank < actual.size(); ++rank) {
          CHECK(bit_difference(actual[rank], expected[rank]) == "");
          CHECK(actual[rank].memory.host_bytes > 0);
          CHECK(actual[rank].memory.optimizer_bytes <= device_bytes);
          CHECK((actual[rank].memory.optimizer_bytes > 0) == shares);
        }
      }
    }
  }
}

constexpr double kOverflowingScale = 1 << 18;
const std::vector<std::string> kStrategies = {"single", "zero1", "zero2", "zero3", "fsdp"};

bool legal(const std::string& strategy, int ranks) { return strategy != "single" || ranks == 1; }

}  // namespace

TEST_CASE("fp32: strategies x ranks x accumulation x what is offloaded") {
  const ParityWork work = toy_work();
  for (const auto& strategy : kStrategies) {
    for (const int ranks : {1, 2, 4}) {
      for (const int accumulation : {1, 2}) {
        if (!legal(strategy, ranks)) continue;
        ParityRow row{.ranks = ranks, .accumulation = accumulation};
        row.parallel.strategy = strategy;
        check_offloaded(row, work, 48, /*pageable=*/true);
      }
    }
  }
}

TEST_CASE("16 bits with masters on the host, fp32 gradients, skipped steps") {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    ParityWork work = toy_work();
    // Overflows at first, so the first steps are skipped.
    work.trainer.loss_scaler = {.enabled = dtype == at::kHalf, .initial_scale = kOverflowingScale};
    ParityRow device;
    device.parallel.precision.parameter = dtype;
    const RankRecord single = run_on_threads(device, work).front();
    const auto skipped = std::ranges::count_if(
        single.steps, [](const StepRecord& step) { return !std::isfinite(step.norm); });
    CHECK((dtype == at::kHalf ? skipped == 2 : skipped == 0));
    for (const auto& strategy : kStrategies) {
      for (const bool fp32_gradients : {false, true}) {
        ParityRow row{.ranks = strategy == "single" ? 1 : 2};
        row.parallel.strategy = strategy;
        row.parallel.precision.parameter = dtype;
        if (fp32_gradients) row.parallel.precision.gradient = at::kFloat;
        check_offloaded(row, work);
      }
    }
  }
}

TEST_CASE(
    "units of many chunks, without overlap, recomputed, kept gathered, hybrid, without clip") {
  // The embedding has 102,400 elements, three chunks of the host's threads.
  ParityWork work = toy_work({.vocabulary = 640, .hidden = 160, .layers = 2}, 8);
  work.global_batches.resize(2);
  work.trainer.max_grad_norm = 0;
  for (const auto& strategy : kStrategies) {
    for (const int variant : {0, 1, 2, 3}) {
      ParityRow row{.ranks = strategy == "single" ? 1 : variant == 3 ? 4 : 2};
      row.parallel.strategy = strategy;
      row.parallel.precision.parameter = variant == 0 ? at::kFloat : at::kBFloat16;
      row.parallel.overlap = variant != 1;
      row.parallel.gradient_checkpointing = variant == 2;
      if (variant == 3) {
        if (strategy != "fsdp") continue;
        row.parallel.reshard_after_forward = false;
        row.parallel.shard_ranks = 2;
        row.parallel.unit_numel = 60'000;
      }
      check_offloaded(row, work, 10'000);
    }
  }
}

TEST_CASE("inside pipeline stages and on a tensor axis, clipped over all axes") {
  const ParityWork toy = toy_work();
  for (const std::string strategy : {"zero1", "zero3"}) {
    for (const int data : {1, 2}) {
      ParityRow row{.ranks = 2 * data, .accumulation = 4, .pipeline = 2};
      row.parallel.strategy = strategy;
      row.parallel.precision.parameter = at::kBFloat16;
      check_offloaded(row, toy);
    }
  }
  const auto bloom = sized("bloom", {.vocabulary = 67, .hidden = 48, .heads = 6, .layers = 2});
  ParityWork work = toy_work({.vocabulary = 67}, 8);
  work.model = causal(bloom);
  for (const auto& [pipeline, data] : {std::pair(1, 2), {2, 1}}) {
    ParityRow row{.ranks = 4, .accumulation = 2, .pipeline = pipeline, .tensor = 2};
    row.parallel.strategy = data == 2 ? "fsdp" : "zero2";
    row.parallel.sequence_parallel = data == 2;
    check_offloaded(row, work);
  }
}

TEST_CASE("stochastic gradient descent with momentum steps on the host as well") {
  ParityWork work = toy_work();
  work.optimizer = make_sgd({.momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
  for (const std::string strategy : {"single", "zero2", "fsdp"}) {
    ParityRow row{.ranks = strategy == "single" ? 1 : 2};
    row.parallel.strategy = strategy;
    row.parallel.precision.parameter = at::kBFloat16;
    check_offloaded(row, work);
  }
}
