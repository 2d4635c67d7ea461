// SPDX-License-Identifier: MIT
// Losses and gradients beside those of PyTorch.
#include <ATen/core/grad_mode.h>

#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/program/committed.h"

using namespace tessera;
using namespace tessera::test;

namespace {

void check_gradients(const std::string& model, const ProgramStep& actual, const Json& expected) {
  const std::map<std::string, std::string> stored = names_in_weights(program_directory(model));
  for (const auto& [name, of_parameter] : expected.members()) {
    INFO(name);
    REQUIRE(actual.gradients.contains(stored.at(name)));
    const at::Tensor gradient = actual.gradients.at(stored.at(name)).to(at::kDouble);
    const double norm = of_parameter.at("norm").as_double();
    CHECK(gradient.norm().item<double>() == Approx(norm).epsilon(1e-5).margin(1e-6));
  }
}

// The steps of reference.json by SGD. batch_of: a micro-batch of one of its batches.
void check_steps(const std::string& name, bool cut, bool gradient_in_forward,
                 MicroBatch (*batch_of)(const Json&)) {
  const Json reference = reference_of(name);
  const Json expected = reference.at("optimizers").at("sgd");
  INFO(name << ", cut " << cut << ", gradient in forward " << gradient_in_forward);
  LoadedModel loaded(program_directory(name), {.cut = cut});
  const double rate = expected.at("settings").at("lr").as_double();
  for (size_t i = 0; i < reference.at("batches").size(); ++i) {
    const MicroBatch batch = batch_of(reference.at("batches").at(i));
    const ProgramStep result = step(loaded, batch, {.gradient_in_forward = gradient_in_forward});
    CHECK(result.loss == Approx(expected.at("loss").at(i).as_double()).epsilon(1e-5));
    if (i == 0) check_gradients(name, result, expected.at("gradients"));
    const at::NoGradGuard no_grad;
    for (const Parameter& parameter : loaded.model.parameters()) {
      parameter.tensor.sub_(parameter.tensor.grad() * rate);
    }
  }
}

}  // namespace

TEST_CASE("decoders' losses and gradients are those of PyTorch") {
  const std::string name = GENERATE("gemma3", "gpt_neox", "gpt_oss", "llama", "olmoe", "phi3");
  const bool cut = GENERATE(false, true);
  const bool gradient_in_forward = GENERATE(false, true);
  check_steps(name, cut, gradient_in_forward, causal_batch);
}

TEST_CASE("a classifier's losses and gradients are those of PyTorch") {
  const bool cut = GENERATE(false, true);
  check_steps("classifier", cut, /*gradient_in_forward=*/false, class_batch);
  LoadedModel loaded(program_directory("classifier"), {.cut = cut});
  CHECK((loaded.model.blocks().size() > 1) == cut);
  MicroBatch batch = class_batch(reference_of("classifier").at("batches").at(size_t{0}));
  const at::NoGradGuard no_grad;
  const at::Tensor sums = loaded.model.forward(batch);  // the loss, and how many were right
  REQUIRE(sums.numel() == 2);
  CHECK(sums[1].item<double>() >= 0);
  CHECK(sums[1].item<double>() <= 4);
  batch.labels.fill_(3);
  const std::string message = require_error(
      ErrorCode::kInvalidArgument, [&] { loaded.model.forward(batch); }, "a class too many");
  CHECK_THAT(message, contains("3"));
}

TEST_CASE("masks and shapes that a program was not exported for are refused") {
  LoadedModel decoder(program_directory("llama"));
  MicroBatch masked = causal_batch(reference_of("llama").at("batches").at(size_t{0}));
  masked.attention_mask = at::ones_like(masked.input_ids, at::kBool);
  const std::string mask = require_error(
      ErrorCode::kInvalidArgument, [&] { decoder.model.forward(masked); }, "a mask");
  CHECK_THAT(mask, contains("attention mask"));

  LoadedModel toy(program_directory("toy"), {.running_statistics_of_rank = 0});
  const MicroBatch one = make_micro_batch(at::ones({1, 12}), at::zeros({1}, at::kLong));
  const std::string row = require_error(
      ErrorCode::kInvalidArgument, [&] { toy.model.forward(one); }, "one row");
  CHECK_THAT(row, contains("exported for [2 or more, 12]"));
}

TEST_CASE("weights that are not stored are drawn as the manifest says, block by block") {
  const ModelSpec spec = from_program(program_directory("llama"));
  WholeModel first(spec, {.seed = 3}), again(spec, {.seed = 3}), other(spec, {.seed = 4});
  for (size_t i = 0; i < first.parameters().size(); ++i) {
    const Parameter& parameter = first.parameters()[i];
    INFO(parameter.name);
    CHECK(at::equal(parameter.tensor, again.parameters()[i].tensor));
    if (parameter.tensor.dim() < 2) {
      CHECK(at::equal(parameter.tensor, at::ones_like(parameter.tensor)));
      continue;
    }
    CHECK(!at::equal(parameter.tensor, other.parameters()[i].tensor));
    CHECK(parameter.tensor.std().item<double>() == Approx(0.02).epsilon(0.1));
  }
  const at::Tensor table = first.parameters().front().tensor;
  CHECK(table[0].abs().sum().item<double>() == 0);  // the row of padding
  const BuildContext alone{.seed = 3};
  const auto layer = spec.blocks[2].build(alone);
  CHECK(at::equal(layer->parameters()[0].tensor, first.blocks()[2]->parameters()[0].tensor));
}
