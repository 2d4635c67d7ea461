// SPDX-License-Identifier: MIT
// Steps with micro-batches captured as CUDA graphs, compared with steps kernel by kernel:
//   step_graphs_check [PART OF A CASE'S NAME]
// Losses, norms and weights must be equal bit for bit, for any shapes and for work that cannot be
// captured. Once all is captured, steps must allocate nothing.
#include <ATen/ATen.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lib/testing/player.h"
#include "tessera/comm/launch.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tessera/model/lora.h"
#include "tests/gpu/allocator.h"
#include "tests/support/ranks.hpp"
#include "tests/support/sized.h"
#include "tests/support/toy_models.h"

namespace tessera::testing {
namespace {

using test::require;

constexpr int64_t kVocabulary = 1000;
constexpr int64_t kWorkspaces = int64_t{96} << 20;  // LibTorch's workspaces for one more stream
constexpr int kSteps = 24, kWarmUp = 16;

struct Case {
  std::string name;
  ModelSpec model;
  at::ScalarType dtype = at::kBFloat16;
  std::vector<int64_t> lengths = {64};  // of sequences, used in rotation
  int accumulation = 1, calls = 1;
  bool recorded = true;
  bool recomputes = false;
};

struct TrainingResult {
  std::vector<double> numbers;
  Named weights;
  int64_t requests = 0;      // allocator requests of the steps after warm-up
  int64_t device_calls = 0;  // those that the allocator passed to the device
  int64_t peak = 0;
};

int64_t requests() {
  return test::gpu_memory()
      .allocation[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)]
      .allocated;
}

TrainingResult train(Communicator& world, const Case& c, bool records) {
  if (records) {  // unset otherwise: the default
    ::unsetenv("TESSERA_CUDA_GRAPH");
  } else {
    ::setenv("TESSERA_CUDA_GRAPH", "0", /*replace=*/1);
  }
  ParallelConfig config{.gradient_checkpointing = c.recomputes};
  config.precision.parameter = c.dtype;
  const Player player(world, {.model = c.model, .parallel = config});
  Strategy& strategy = player.strategy();
  TrainingResult result;
  int64_t requests_before = 0, calls_before = 0;
  for (int step = 0; step < kSteps; ++step) {
    if (step == kWarmUp) {
      requests_before = requests();
      calls_before = memory_use(world.device()).allocations;
      reset_peak_memory(world.device());
    }
    std::vector<MicroBatch> batches;
    for (int i = 0; i < c.accumulation; ++i) {
      const auto number = static_cast<uint64_t>(step * c.accumulation + i);
      const int64_t length = c.lengths[number % c.lengths.size()];
      batches.push_back(
          toy_micro_batch({.vocabulary = kVocabulary}, 4, length, number).to(world.device()));
    }
    for (int call = 0; call < c.calls; ++call) {
      result.numbers.push_back(
          strategy.forward_backward(batches, {.accumulate = c.calls > 1}).loss.item<double>());
    }
    result.numbers.push_back(strategy.grad_norm_squared().item<double>());
    strategy.optimizer_step(1e-3);
  }
  result.requests = requests() - requests_before;
  result.device_calls = memory_use(world.device()).allocations - calls_before;
  result.peak = memory_use(world.device()).peak_allocated_bytes;
  result.weights = parameters_of(strategy);
  return result;
}

void compare_case(Communicator& world, const Case& c) {
  const TrainingResult expected = train(world, c, /*records=*/false);
  const TrainingResult actual = train(world, c, /*records=*/true);
  const std::string line =
      concat(c.name, ": ", expected.requests, " and ", actual.requests,
             " requests to the allocator, ", actual.device_calls, " to the device; peak ",
             expected.peak >> 10, " and ", actual.peak >> 10, " KiB");
  std::puts(line.c_str());
  std::fflush(stdout);
  for (size_t i = 0; i < expected.numbers.size(); ++i) {
    require(actual.numbers[i] == expected.numbers[i], c.name, ": number ", i, " is ",
            actual.numbers[i], ", kernel by kernel ", expected.numbers[i]);
  }
  const std::string differs = difference(actual.weights, expected.weights, 0);
  require(differs.empty(), c.name, ": weights differ: ", differs);
  require((2 * actual.requests < expected.requests) == c.recorded, c.name,
          c.recorded ? ": nothing was recorded" : ": it was recorded");
  require(actual.device_calls == 0, c.name, ": the steps allocated ", actual.device_calls,
          " times");
  require(std::abs(actual.peak - expected.peak) < kWorkspaces, c.name, ": the peak is ",
          actual.peak, " bytes, kernel by kernel ", expected.peak);
}

// Scales its input after calling `first`; whether it can be captured may be stated wrongly.
class OwnBlock final : public Block {
 public:
  OwnBlock(std::function<void(const at::Tensor&)> first, bool says)
      : first_(std::move(first)), says_(says) {}
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch&, const BlockContext&) override {
    first_(hidden);
    return hidden * 1.25;
  }
  std::vector<Parameter> parameters() override { return {}; }
  bool is_recordable(bool /*training*/) const override { return says_; }

 private:
  std::function<void(const at::Tensor&)> first_;
  bool says_;
};

// A model with such a block before its head.
ModelSpec with_own_block(const std::function<void(const at::Tensor&)>& first, bool says = true) {
  ModelSpec model =
      causal(sized("bloom", {.vocabulary = kVocabulary, .hidden = 128, .heads = 2, .layers = 2}));
  BlockBuilder builder = model.blocks[model.blocks.size() - 2];
  builder.name = "own";
  builder.build = [first, says](const BuildContext&) {
    return std::make_unique<OwnBlock>(first, says);
  };
  model.blocks.insert(model.blocks.end() - 1, builder);
  return model;
}

void check_all(Communicator& world, const std::string& named) {
  int failures = 0;
  const auto compare = [&](const Case& c) {
    if (c.name.find(named) == std::string::npos) return;
    try {
      compare_case(world, c);
    } catch (const std::exception& error) {
      std::printf("FAILED %s\n", error.what());
      ++failures;
    }
  };
  const Sizes sizes{.vocabulary = kVocabulary, .hidden = 256, .heads = 4, .layers = 3};
  Sizes dropped = sizes;
  dropped.dropout = 0.1;
  Sizes whole = sizes;
  whole.dropout = 0.0;
  const ModelSpec bloom = causal(sized("bloom", whole)), gpt2 = causal(sized("gpt2", whole)),
                  llama = causal(sized("llama", sizes));
  for (const int accumulation : {1, 3}) {
    const std::string many = accumulation == 1 ? "" : ", accumulated";
    for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{64}, {64, 96}}) {
      const std::string of = many + (lengths.size() == 1 ? "" : ", two shapes");
      compare({"bloom" + of, bloom, at::kBFloat16, lengths, accumulation});
      compare({"gpt2" + of, gpt2, at::kHalf, lengths, accumulation});
      compare({"llama" + of, llama, at::kBFloat16, lengths, accumulation});
    }
  }
  std::vector<int64_t> one_of_many(kSteps, 64), each_once(kSteps);
  for (size_t i = 0; i < each_once.size(); ++i) {
    const auto length = static_cast<int64_t>(8 * (each_once.size() - i));
    each_once[i] = length;
    if (i > 0 && i < 9) one_of_many[i] = length;  // never 64
  }
  compare({.name = "one shape of many", .model = bloom, .lengths = one_of_many});
  compare(
      {.name = "shapes that come once", .model = bloom, .lengths = each_once, .recorded = false});
  compare({.name = "fp32", .model = bloom, .dtype = at::kFloat});
  compare({.name = "two calls", .model = bloom, .calls = 2});
  compare({.name = "recomputed", .model = bloom, .recomputes = true});
  compare(
      {.name = "adapters", .model = add_lora(bloom, {.r = 4, .target_modules = {"all-linear"}})});
  compare({.name = "adapters with dropout",
           .model = add_lora(bloom, {.r = 4, .dropout = 0.1, .target_modules = {"all-linear"}}),
           .recorded = false});
  const ModelSpec gpt2_drops = causal(sized("gpt2", dropped)),
                  llama_drops = causal(sized("llama", dropped));
  Sizes composed = dropped;
  composed.hidden = 16;  // head size 4, which no attention kernel supports
  dropped.heads = 2;     // head size 128
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    compare({.name = "gpt2 with dropout", .model = gpt2_drops, .dtype = type});
  }
  compare({.name = "gpt2 with dropout, two shapes",
           .model = gpt2_drops,
           .dtype = at::kHalf,
           .lengths = {64, 96},
           .accumulation = 3});
  compare({.name = "gpt2 with dropout, two calls", .model = gpt2_drops, .calls = 2});
  compare({.name = "gpt2 with dropout, recomputed", .model = gpt2_drops, .recomputes = true});
  compare({.name = "gpt2 with dropout, wide heads", .model = causal(sized("gpt2", dropped))});
  compare({.name = "llama with dropout", .model = llama_drops});
  DecoderConfig bloom_drops = sized("bloom", whole);
  bloom_drops.residual_dropout = 0.1;
  compare({.name = "bloom with dropout", .model = causal(bloom_drops)});
  compare({.name = "bloom with dropout of attention",
           .model = causal(sized("bloom", dropped)),
           .recorded = false});
  compare({.name = "gpt2 with dropout that no kernel draws",
           .model = causal(sized("gpt2", composed)),
           .recorded = false});
  const auto nothing = [](const at::Tensor&) {};
  compare({.name = "a block of one's own", .model = with_own_block(nothing)});
  compare({.name = "a block that says nothing",
           .model = with_own_block(nothing, /*says=*/false),
           .recorded = false});
  compare({.name = "a block that waits for the device",
           .model = with_own_block([](const at::Tensor& hidden) { hidden.sum().item<double>(); }),
           .recorded = false});
  compare({.name = "a block that throws while it is recorded",
           .model = with_own_block([](const at::Tensor& hidden) {
             const auto stream = current_stream(hidden.device());
             if (stream.id() != 0) throw std::runtime_error("recorded");
           }),
           .recorded = false});
  require(failures == 0, failures, " cases failed");
}

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  const std::string named = argc > 1 ? argv[1] : "";
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  return tessera::run_job({.transport = "nccl"}, [&](tessera::Communicator& world) {
    tessera::testing::check_all(world, named);
  });
}
