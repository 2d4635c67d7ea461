// SPDX-License-Identifier: MIT
// LoRA beside the linear layers of exported programs.
#include "lib/program/adapters.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>

#include "lib/program/linear_layers.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/program/committed.h"

using namespace tessera;
using namespace tessera::program;
using namespace tessera::test;

namespace {

LoraRule rule_of(std::vector<std::string> targets) {
  LoraRule rule;
  rule.r = 3;
  rule.alpha = 6;
  rule.target_modules = std::move(targets);
  return rule;
}

// Last parts of the modules with adapters, and how many of each.
std::map<std::string, int> adapted(const ModelSpec& model) {
  std::map<std::string, int> counts;
  for (const ParameterInfo& parameter : parameters_of(model)) {
    if (!LoraRule::matches(parameter.name, kLoraA)) continue;
    const std::string name = model.stored_name(parameter.block, parameter.name);
    const std::string module = name.substr(0, name.size() - kLoraA.size() - 1);
    ++counts[module.substr(module.rfind('.') + 1)];
  }
  return counts;
}

std::map<std::string, int> all_linear(const std::string& name) {
  const ProgramOptions options{.running_statistics_of_rank = 0};
  return adapted(add_lora(from_program(program_directory(name), options), rule_of({"all-linear"})));
}

std::string refusal(const std::string& name, const std::string& target) {
  return require_error(
      ErrorCode::kInvalidArgument,
      [&] { add_lora(from_program(program_directory(name)), rule_of({target})); }, target);
}

using Counts = std::map<std::string, int>;

// One product on x [3, 4] with w, as a program has it.
Graph product(const std::string& target, std::vector<NamedArgument> arguments,
              std::vector<int64_t> weight) {
  Graph graph{.file = "one product"};
  const std::vector<std::pair<std::string, std::vector<int64_t>>> values = {
      {"x", {3, 4}}, {"w", std::move(weight)}, {"y", {3, 5}}};
  for (const auto& [name, shape] : values) {
    Value value{.name = name, .dtype = at::kFloat};
    for (const int64_t extent : shape) value.sizes.push_back({.number = extent});
    graph.values.push_back(value);
  }
  graph.inputs = {{InputKind::kHidden, "0", 0}, {InputKind::kParameter, "a.weight", 1}};
  graph.nodes = {{.name = "y", .target = target, .arguments = std::move(arguments)}};
  graph.nodes[0].outputs = {{{2}}};
  graph.outputs = {2};
  return graph;
}

Item value(ValueId id) { return reference(id); }

}  // namespace

TEST_CASE("all-linear adapts the modules of linear classes but the head") {
  CHECK(all_linear("llama") == Counts{{"q_proj", 2},
                                      {"k_proj", 2},
                                      {"v_proj", 2},
                                      {"o_proj", 2},
                                      {"gate_proj", 2},
                                      {"up_proj", 2},
                                      {"down_proj", 2}});
  CHECK(all_linear("phi3") ==
        Counts{{"qkv_proj", 2}, {"o_proj", 2}, {"gate_up_proj", 2}, {"down_proj", 2}});
  CHECK(all_linear("gpt_neox") ==
        Counts{{"query_key_value", 2}, {"dense", 2}, {"dense_h_to_4h", 2}, {"dense_4h_to_h", 2}});
  // Routers are no modules of a linear class, and experts no matrices.
  const Counts attention{{"q_proj", 2}, {"k_proj", 2}, {"v_proj", 2}, {"o_proj", 2}};
  CHECK(all_linear("olmoe") == attention);
  CHECK(all_linear("gpt_oss") == attention);
  // The program gives its loss: no layer of it is a head.
  CHECK(all_linear("toy") == Counts{{"embed", 1}, {"linear", 2}, {"head", 1}});
}

TEST_CASE("targets are the Hub's names of layers, heads and routers included") {
  const auto of = [](const std::string& name, std::vector<std::string> targets) {
    return adapted(add_lora(from_program(program_directory(name)), rule_of(std::move(targets))));
  };
  CHECK(of("llama", {"lm_head", "layers.1.mlp.up_proj"}) == Counts{{"lm_head", 1}, {"up_proj", 1}});
  CHECK(of("olmoe", {"gate"}) == Counts{{"gate", 2}});
  CHECK(of("gpt_neox", {"embed_out"}) == Counts{{"embed_out", 1}});  // lm_head in transformers
  CHECK(of("gpt_neox", {}) == Counts{{"query_key_value", 2}});       // PEFT's choice
  CHECK_THAT(refusal("olmoe", "gate_up_proj"), contains("of all experts and no layer"));
  CHECK_THAT(refusal("llama", "embed_tokens"),
             contains("matches model.embed_tokens, to which block embedding adds no adapter"));
  CHECK_THAT(refusal("gemma3", "embed_tokens"), contains("tied"));
  LoraRule rule = rule_of({});
  rule.target_parameters = {"mlp.experts.gate_up_proj"};
  CHECK_THAT(require_error(
                 ErrorCode::kInvalidArgument,
                 [&] { add_lora(from_program(program_directory("olmoe")), rule); }, "of programs"),
             contains("adds no adapter"));
  rule.target_parameters = {};
  CHECK_THAT(require_error(
                 ErrorCode::kInvalidArgument,
                 [&] { add_lora(from_program(program_directory("olmoe")), rule); }, "no default"),
             contains("name them, or all-linear"));
}

TEST_CASE("a program with adapters gives the loss of W + scale B A, and no gradient of W") {
  const std::string name = GENERATE("llama", "phi3", "gpt_neox", "olmoe");
  const bool own_operators = GENERATE(true, false);
  INFO(name << ", own operators " << own_operators);
  const std::string directory = program_directory(name);
  const ModelSpec plain = from_program(directory, {.own_operators = own_operators});
  const LoraRule rule = rule_of({"all-linear"});
  const HuggingFaceDirectory weights(directory);
  WholeModel model(add_lora(plain, rule), {.source = &weights}),
      merged(plain, {.source = &weights});
  std::map<std::string, at::Tensor> tensors, bases;
  for (const Parameter& p : model.parameters()) tensors[p.name] = p.tensor;
  for (const Parameter& p : merged.parameters()) bases[p.name] = p.tensor;
  {
    const at::NoGradGuard none;
    for (const auto& [key, tensor] : tensors) {
      if (!LoraRule::matches(key, kLoraB)) continue;
      tensor.normal_(0, 0.1, at::detail::createCPUGenerator(3));
      const std::string module = key.substr(0, key.size() - kLoraB.size());
      const std::string base = module.substr(kLoraPrefix.size()) + "weight";
      bases.at(base).add_(tensor.matmul(tensors.at(module + std::string(kLoraA))), rule.scale());
    }
  }
  const MicroBatch batch = causal_batch(reference_of(name).at("batches").at(size_t{0}));
  const at::Tensor loss = model.forward(batch, {.training = true});
  CHECK(loss[0].item<double>() ==
        Approx(merged.forward(batch, {.training = true})[0].item<double>()).epsilon(1e-6));
  loss[0].backward();
  for (const auto& [key, tensor] : tensors) {
    INFO(key);
    CHECK(tensor.requires_grad() == is_adapter(key));
    if (is_adapter(key)) CHECK(tensor.grad().norm().item<double>() > 0);
  }
}

TEST_CASE("products with a parameter are linear layers, whatever they are called") {
  const auto layer_of = [](const Graph& graph) {
    const auto layers = linear_layers(graph);
    REQUIRE(layers.size() == 1);
    return layers.front();
  };
  const LinearLayer linear =
      layer_of(product("aten.linear.default",
                       {{"input", value(0)}, {"weight", value(1)}, {"bias", Item()}}, {5, 4}));
  CHECK((linear.in == 4 && linear.out == 5 && !linear.in_out));
  const LinearLayer mm =
      layer_of(product("aten.mm.default", {{"self", value(0)}, {"mat2", value(1)}}, {4, 5}));
  CHECK((mm.in == 4 && mm.out == 5 && mm.in_out));
  const auto addmm = [](double alpha) {
    return product(
        "aten.addmm.default",
        {{"self", Item()}, {"mat1", value(0)}, {"mat2", value(1)}, {"alpha", Item(alpha)}}, {4, 5});
  };
  CHECK(layer_of(addmm(1)).in_out);
  CHECK(linear_layers(addmm(2)).empty());

  Graph turned = product("aten.matmul.default", {{"self", value(0)}, {"other", value(3)}}, {5, 4});
  turned.values.push_back({.name = "t", .dtype = at::kFloat});
  Node transpose{.name = "t", .target = "aten.numpy_T.default", .arguments = {{"self", value(1)}}};
  transpose.outputs = {{{3}}};
  turned.nodes.insert(turned.nodes.begin(), transpose);
  const LinearLayer matmul = layer_of(turned);
  CHECK((matmul.weight == 1 && matmul.in == 4 && matmul.out == 5 && !matmul.in_out));
  // What else is made of the matrix would lack the adapter.
  turned.outputs.push_back(3);
  CHECK(linear_layers(turned).empty());
  turned.outputs = {2, 1};
  CHECK(linear_layers(turned).empty());
}
