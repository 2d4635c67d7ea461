// SPDX-License-Identifier: MIT
// Parameter groups and decay rules: members and errors.
#include "tessera/model/parameter_groups.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <map>

#include "tessera/core/error.h"
#include "tessera/model/adapters.h"
#include "tests/support/test.hpp"

using namespace tessera;
using test::contains;
namespace nn = torch::nn;

namespace {

at::Tensor loss(const at::Tensor& scores, const MicroBatch&) { return scores.square().sum(); }

ModelSpec layers() {
  return from_sequential(nn::Sequential(nn::Linear(4, 6), nn::Linear(6, 4), nn::Linear(4, 6)),
                         loss);
}

// The last layer's weight is tied to the first's.
ModelSpec tied_layers() {
  ModelSpec model = layers();
  model.tied.push_back({"0", "weight", "2", "weight"});
  return model;
}

std::map<std::string, Parameter> built(const ModelSpec& model) {
  std::map<std::string, Parameter> all;
  for (const BlockBuilder& builder : model.blocks) {
    const auto block = builder.build({.seed = 1});
    for (const Parameter& parameter : builder.parameters_of(*block)) {
      all[builder.name + "." + parameter.name] = parameter;
    }
  }
  return all;
}

std::string refusal(const ModelSpec& model, const std::vector<ParameterGroup>& groups) {
  try {
    with_groups(model, groups);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a group says how its parameters are updated, and no others are") {
  ParameterGroup fast{.name = "fast", .matches = named("1"), .lr_factor = 10};
  fast.weight_decay = 0.5;
  fast.betas = std::pair(0.5, 0.6);
  const auto all = built(
      with_groups(layers(), {fast, {.name = "still", .matches = named("0.bias"), .frozen = true}}));
  for (const char* name : {"1.weight", "1.bias"}) {
    CHECK(all.at(name).rule == UpdateRule{"fast", 10, 0.5, std::pair(0.5, 0.6)});
  }
  CHECK(all.at("0.bias").rule == UpdateRule{.group = "still"});
  CHECK_FALSE(all.at("0.bias").tensor.requires_grad());
  for (const char* name : {"0.weight", "2.weight", "2.bias"}) {
    CHECK(all.at(name).rule == UpdateRule{});
    CHECK(all.at(name).tensor.requires_grad());
  }
}

TEST_CASE("a name stands for whole words between dots") {
  const std::pair<const char*, bool> kCases[] = {
      {"h.1", true},    {"1.ln", true}, {"h.1.ln.weight", true},
      {"weight", true}, {"h", true},    {"weigh", false},
      {"h.1.l", false}, {"1", true},    {"", false}};
  for (const auto& [part, expected] : kCases) {
    INFO(part);
    CHECK(named(part)("h.1", "ln.weight", {}) == expected);
    CHECK_FALSE((std::string(part) == "h.1" && named(part)("h.10", "ln.weight", {})));
  }
}

TEST_CASE("a tied parameter is in its owner's group at both places") {
  const auto shapes = [](const std::string&, const std::string&, c10::IntArrayRef shape) {
    return shape.size() == 2 && shape[0] == 6;
  };
  const auto all =
      built(with_groups(tied_layers(), {{.name = "wide", .matches = shapes, .lr_factor = 2}}));
  CHECK(all.at("0.weight").rule.lr_factor == 2);
  CHECK(all.at("2.weight").rule.lr_factor == 2);
  CHECK(all.at("1.weight").rule.lr_factor == 1);
  CHECK_THAT(refusal(tied_layers(), {{.name = "head", .matches = named("2.weight")}}),
             contains("group \"head\" matches nothing that is trained on its own, only 2.weight, "
                      "which is tied to another"));
}

TEST_CASE("groups that match nothing, or one parameter twice, are refused with their names") {
  const ParameterGroup one{.name = "one", .matches = named("1")};
  CHECK_THAT(refusal(layers(), {{.name = "typo", .matches = named("encoder")}}),
             contains("parameter group \"typo\" matches no parameter of model"));
  CHECK_THAT(refusal(layers(), {one, {.name = "bias", .matches = named("bias")}}),
             contains("groups \"one\" and \"bias\" both match parameter 1.bias"));
  const ModelSpec before = with_groups(with_decay(layers(), DecayRule::kAll), {one});
  CHECK_THAT(refusal(before, {{.name = "bias", .matches = named("bias")}}),
             contains("groups \"one\" and \"bias\" both match parameter 1.bias"));
  CHECK(refusal(before, {{.name = "two", .matches = named("2")}}) == "");
  CHECK_THAT(refusal(layers(), {one, one}), contains("two parameter groups named \"one\""));
  const ModelSpec frozen = freeze(layers(), [](auto& block, auto&) { return block == "1"; });
  CHECK_THAT(refusal(frozen, {one}), contains("nothing that is trained on its own, only 1."));
  CHECK(refusal(layers(), {one}) == "");
}

TEST_CASE("settings that a group cannot have are refused") {
  ParameterGroup group{.name = "g", .matches = named("1")};
  const auto refused = [&](auto&& change, const char* why) {
    ParameterGroup wrong = group;
    change(wrong);
    CHECK_THAT(refusal(layers(), {wrong}), contains(why));
  };
  refused([](ParameterGroup& g) { g.lr_factor = 0; }, "learning-rate factor of 0");
  refused([](ParameterGroup& g) { g.weight_decay = -1; }, "weight decay of -1");
  refused([](ParameterGroup& g) { g.betas = std::pair(0.9, 1.0); }, "betas 0.9, 1");
  refused([](ParameterGroup& g) { g.matches = nullptr; }, "needs a name and a predicate");
  refused(
      [](ParameterGroup& g) {
        g.frozen = true;
        g.lr_factor = 2;
      },
      "is frozen");
}

TEST_CASE("decay is for matrices, for all, or for what a predicate says") {
  const auto decaying = [](const ModelSpec& model) {
    std::string names;
    for (const auto& [name, parameter] : built(model)) {
      if (parameter.weight_decay) names += name + " ";
    }
    return names;
  };
  CHECK(decaying(with_decay(layers(), DecayRule::kMatrices)) == "0.weight 1.weight 2.weight ");
  CHECK(decaying(with_decay(layers(), DecayRule::kAll)) ==
        "0.bias 0.weight 1.bias 1.weight 2.bias 2.weight ");
  CHECK(decaying(with_decay(layers(), named("1"))) == "1.bias 1.weight ");
}
