// SPDX-License-Identifier: MIT
// Losses and gradients beside those of PyTorch.
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

}  // namespace

TEST_CASE("decoders' losses and gradients are those of PyTorch") {
  const std::string name = GENERATE("gemma3", "gpt_neox", "gpt_oss", "llama", "olmoe", "phi3");
  const Json reference = reference_of(name);
  const Json expected = reference.at("optimizers").at("sgd");
  const bool cut = GENERATE(false, true);
  const bool gradient_in_forward = GENERATE(false, true);
  INFO(name << ", cut " << cut << ", gradient in forward " << gradient_in_forward);
  LoadedModel loaded(program_directory(name), {.cut = cut});
  const double rate = expected.at("settings").at("lr").as_double();
  for (size_t i = 0; i < reference.at("batches").size(); ++i) {
    const MicroBatch batch = causal_batch(reference.at("batches").at(i));
    const ProgramStep result = step(loaded, batch, gradient_in_forward);
    CHECK(result.loss == Approx(expected.at("loss").at(i).as_double()).epsilon(1e-5));
    if (i == 0) check_gradients(name, result, expected.at("gradients"));
    const at::NoGradGuard no_grad;
    for (const Parameter& parameter : loaded.model.parameters()) {
      parameter.tensor.sub_(parameter.tensor.grad() * rate);
    }
  }
}
