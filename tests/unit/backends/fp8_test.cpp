// SPDX-License-Identifier: MIT
// Products in 8 bits in a strategy's passes: which have them, and what is refused.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "lib/testing/player.h"
#include "tessera/core/error.h"
#include "tests/support/messages.hpp"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"
#include "tests/support/toy_models.h"

using namespace tessera;
using namespace tessera::testing;
using tessera::test::contains;

namespace {

constexpr int64_t kWords = 31;

ModelSpec small_llama() {
  return causal(sized(
      "llama",
      {.vocabulary = kWords, .hidden = 16, .heads = 4, .layers = 2, .initializer_range = 0.3}));
}

ParallelConfig config_of(const std::string& strategy, Fp8 fp8) {
  ParallelConfig config{.strategy = strategy};
  config.precision.fp8 = fp8;
  return config;
}

MicroBatch batch_of_words() { return toy_micro_batch({.vocabulary = kWords}, 2, 6, 5); }

struct Losses {
  double step, evaluation;
  double training_pass, pass;  // sums of scores
};

Losses losses(Fp8 fp8) {
  Losses result{};
  play({small_llama(), {}, config_of("single", fp8)}, [&](Player& player) {
    Strategy& strategy = player.strategy();
    const auto scores = [&](bool training) {
      const at::NoGradGuard no_grad;
      return strategy.forward(batch_of_words(), {.training = training}).sum().item<double>();
    };
    result.evaluation = strategy.evaluate(std::vector{batch_of_words()}).loss.item<double>();
    result.pass = scores(false);
    result.training_pass = scores(true);
    result.step = strategy.forward_backward(std::vector{batch_of_words()}).loss.item<double>();
  });
  return result;
}

std::string refusal_of(const MeshExtents& mesh, const ParallelConfig& config,
                       const ModelSpec& model) {
  return error_of(ErrorCode::kInvalidArgument, [&] {
    play({model, mesh, config}, [](Player&) {});
  });
}

}  // namespace

TEST_CASE("training passes have products in 8 bits, evaluations and predictions do not") {
  const Losses exact = losses(Fp8::kOff), eight = losses(Fp8::kTensorwise);
  CHECK(eight.step != exact.step);
  CHECK(eight.training_pass != exact.training_pass);
  CHECK(eight.evaluation == exact.evaluation);
  CHECK(eight.pass == exact.pass);
}

TEST_CASE("products in 8 bits are refused by name where they are not built") {
  for (const std::string strategy : {"single", "zero3"}) {
    CHECK_THAT(refusal_of({}, config_of(strategy, Fp8::kRowwise), toy_language_model()),
               contains("Block::takes_fp8") && contains("--fp8 off"));
  }
  CHECK_THAT(refusal_of({.context = 2}, config_of("ddp", Fp8::kTensorwise), small_llama()),
             contains("fp8 on a context axis of 2 ranks") && contains("--fp8 off"));
}
