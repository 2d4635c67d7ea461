// SPDX-License-Identifier: MIT
// Errors, counts and memory of TensorParallel; numbers are tested in tests/parity/tensor_test.cpp.
#include "tessera/backends/tensor/tensor_parallel.h"

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <string>

#include "lib/testing/player.h"
#include "tessera/core/error.h"
#include "tessera/models/language_model.h"
#include "tessera/optim/adamw.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/messages.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;
using tessera::test::contains;

namespace {

DecoderConfig bloom() {
  auto config = sized("bloom", {.vocabulary = 67, .hidden = 48, .heads = 6, .layers = 2});
  config.name = "bloom-test";
  return config;
}

using Look = std::function<void(Communicator&, Strategy&)>;

void attach(const MeshExtents& extents, const ModelSpec& model, const Look& look,
            ParallelConfig config = {.strategy = "zero1"}, const TensorSource* source = nullptr) {
  play({.model = model, .mesh = extents, .parallel = config, .source = source},
       [&](Player& player) { look(player.world(), player.strategy()); });
}

std::string refusal(int tensor, const ModelSpec& model) {
  return error_of(ErrorCode::kInvalidArgument,
                  [&] { attach({.tensor = tensor}, model, [](Communicator&, Strategy&) {}); });
}

}  // namespace

TEST_CASE("degrees and models that do not fit are refused by name") {
  const ModelSpec model = causal(bloom());
  CHECK_THAT(refusal(4, model),
             contains("model bloom-test cannot be shared by 4") && contains("divide over 2, 3, 6"));
  CHECK(refusal(3, model) == "no error");
  CHECK_THAT(refusal(2, toy_language_model()), contains("model toy has no tensor-parallel layers"));
  ModelSpec claims = toy_language_model();  // claims that its blocks know the axis
  claims.tensor_divisor = 2;
  CHECK_THAT(refusal(2, claims), contains("parameter embedding.weight is neither cut nor marked"));
  DecoderConfig few = bloom();
  few.vocabulary = 9;  // 2 rows each for five ranks, none for the last
  CHECK_THAT(refusal(6, causal(few)),
             contains("word_embeddings.weight") && contains("leave nothing for the last of 6"));
}

TEST_CASE("the whole model is counted and visited, whatever the layout") {
  const DecoderConfig config = bloom();
  const ModelSpec model = causal(config);
  const int64_t count = LanguageModel(config).parameter_count(ModelHead::kCausal);
  std::map<std::string, at::Tensor> expected;
  attach({}, model, [&](Communicator&, Strategy& strategy) {
    CHECK(strategy.parameter_count() == count);
    strategy.visit_parameters(
        [&](const VisitedParameter& p) { expected[p.block + "." + p.name] = p.value.clone(); });
  });
  for (const MeshExtents extents :
       {MeshExtents{.tensor = 3}, {.data = 2, .tensor = 2}, {.pipeline = 2, .tensor = 2}}) {
    attach(extents, model, [&](Communicator&, Strategy& strategy) {
      test::require(strategy.parameter_count() == count, "counted ", strategy.parameter_count());
      std::map<std::string, at::Tensor> seen;
      strategy.visit_parameters([&](const VisitedParameter& p) {
        test::require(seen.emplace(p.block + "." + p.name, p.value.clone()).second, "twice");
      });
      test::require(seen.size() == expected.size(), seen.size(), " parameters");
      for (const auto& [name, value] : expected) {
        test::require_bit_equal(seen.at(name), value, name);
      }
    });
  }
}

TEST_CASE("weights of a checkpoint are cut like drawn ones") {
  // Provides any tensor by name and shape, in half precision as in files.
  struct Files : TensorSource {
    bool has(const std::string& name) const override { return name != "lm_head.weight"; }
    at::Tensor read(const std::string& name, at::IntArrayRef shape) const override {
      const auto first = static_cast<double>(std::hash<std::string>()(name) % 100);
      const int64_t numel = c10::multiply_integers(shape);
      return at::linspace(first, first + 1, numel).view(shape).to(at::kHalf);
    }
  } files;
  const ModelSpec model = causal(bloom());
  for (const MeshExtents extents : {MeshExtents{.tensor = 3}, {.data = 2, .tensor = 2}}) {
    attach(
        extents, model,
        [&](Communicator&, Strategy& strategy) {
          strategy.visit_parameters([&](const VisitedParameter& p) {
            const at::Tensor stored =
                files.read(model.checkpoint_name(p.block, p.name), p.value.sizes());
            test::require_bit_equal(p.value, stored.to(at::kFloat), p.name);
          });
        },
        {.strategy = "zero3"}, &files);
  }
}

TEST_CASE("a rank holds its part: parameters, gradients and optimizer state shrink") {
  const DecoderConfig config = bloom();
  const ModelSpec model = causal(config);
  // Replicated parameters: norms and the biases after row-parallel layers.
  const int64_t replicated = 4 * config.hidden + config.layers * 6 * config.hidden;
  const int64_t count = LanguageModel(config).parameter_count(ModelHead::kCausal);
  for (int tensor : {2, 3}) {
    const int64_t padded_rows = (67 + tensor - 1) / tensor * tensor - 67;
    const int64_t own = replicated + (count - replicated + padded_rows * config.hidden) / tensor;
    const int64_t alignment = 64 * 16 * (config.layers + 3);  // upper bound of entries and units
    attach({.tensor = tensor}, model,
           [&](Communicator&, Strategy& strategy) {
             const StrategyMemory memory = strategy.memory();
             for (int64_t bytes : {memory.parameter_bytes, memory.gradient_bytes}) {
               test::require(bytes >= 4 * own && bytes <= 4 * (own + alignment), bytes,
                             " bytes for ", own, " elements");
             }
             test::require(memory.optimizer_bytes >= 8 * own, "moments");
           },
           {.strategy = "ddp"});
  }
}

TEST_CASE("sequence parallelism keeps fewer activations") {
  DecoderConfig config = bloom();
  config.layers = 4;
  const ModelSpec model = causal(config);
  const MicroBatch batch = toy_micro_batch({.vocabulary = 67}, 32, 12, 1);
  const CountingAllocator counting;
  int64_t peak[2] = {};
  for (bool sequence_parallel : {false, true}) {
    ParallelConfig parallel{.strategy = "ddp", .sequence_parallel = sequence_parallel};
    attach(
        {.tensor = 3}, model,
        [&](Communicator& comm, Strategy& strategy) {
          strategy.forward_backward({&batch, 1});
          strategy.optimizer_step(1e-3);
          CountingAllocator::reset_peak();
          const int64_t before = CountingAllocator::live_bytes();
          strategy.forward_backward({&batch, 1});
          if (comm.rank() == 0) {
            peak[sequence_parallel] = CountingAllocator::peak_bytes() - before;
          }
        },
        parallel);
  }
  // About half of a block's saved tensors on three ranks are norms and residuals.
  INFO(peak[0] << " bytes without, " << peak[1] << " with");
  CHECK(peak[1] > 0);
  CHECK(peak[1] < 0.75 * static_cast<double>(peak[0]));
}
