// SPDX-License-Identifier: MIT
// Exported programs on a tensor axis.
#include <ATen/ATen.h>

#include <fstream>
#include <map>

#include "lib/core/folder_file.h"
#include "lib/program/assemble_blocks.h"
#include "lib/program/cut_programs.h"
#include "lib/program/rewrites/apply.h"
#include "lib/program/tensor/cut_graph.h"
#include "lib/program/tensor/tensor_cutter.h"
#include "tessera/model/lora.h"
#include "tests/support/ranks.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/program/committed.h"

using namespace tessera;
using namespace tessera::program;
using namespace tessera::test;

namespace {

Json json_of(const std::string& text) { return Json::parse(text, {}, "rules"); }

// Builds every block for two ranks, and returns the parameters of rank 0.
std::map<std::string, Parameter> of_rank_0(const ModelSpec& model) {
  std::map<std::string, Parameter> parameters;
  run_ranks(2, [&](Communicator& comm) {
    BuildContext context;
    context.tensor = &comm;
    for (const BlockBuilder& builder : model.blocks) {
      const auto block = builder.build(context);
      for (const Parameter& parameter : block->parameters()) {
        if (comm.rank() == 0) {
          parameters.emplace(model.stored_name(builder.name, parameter.name), parameter);
        }
      }
    }
  });
  return parameters;
}

std::string refusal(const ModelSpec& model) {
  return require_error(
      ErrorCode::kInvalidArgument, [&] { of_rank_0(model); }, "a tensor axis");
}

Value tensor(const std::string& name, std::vector<int64_t> shape) {
  Value value{.name = name, .dtype = at::kFloat};
  for (const int64_t extent : shape) value.sizes.push_back({.number = extent});
  return value;
}

Node node(const std::string& name, const std::string& target, std::vector<NamedArgument> arguments,
          ValueId result) {
  Node made{.name = name, .target = target, .arguments = std::move(arguments)};
  made.outputs = {Output{{result}}};
  return made;
}

// Two linear layers, q_proj and o_proj, around columns 0, step, 2 step, ... of the first's eight.
BlockParts every_so_many_columns(int64_t step) {
  const int64_t left = 8 / step;
  Graph graph{.file = "two layers"};
  graph.values = {tensor("x", {3, 4}),   tensor("q", {8, 4}),       tensor("o", {4, left}),
                  tensor("all", {3, 8}), tensor("some", {3, left}), tensor("y", {3, 4})};
  const auto value = [](ValueId id) { return reference(id); };
  graph.inputs = {{InputKind::kHidden, "0", 0},
                  {InputKind::kParameter, "a.q_proj.weight", 1},
                  {InputKind::kParameter, "a.o_proj.weight", 2}};
  graph.nodes = {node("first", "aten.linear.default",
                      {{"input", value(0)}, {"weight", value(1)}, {"bias", Item()}}, 3),
                 node("slice", "aten.slice.Tensor",
                      {{"self", value(3)},
                       {"dim", Item(int64_t{1})},
                       {"start", Item(int64_t{0})},
                       {"end", Item(int64_t{8})},
                       {"step", Item(step)}},
                      4),
                 node("second", "aten.linear.default",
                      {{"input", value(4)}, {"weight", value(2)}, {"bias", Item()}}, 5)};
  graph.outputs = {5};
  BlockParts plan{.name = "a"};
  BlockVariant variant;
  variant.main.inputs = graph.inputs;
  variant.main.is_written = {0, 0, 0};
  variant.main.interpreter = std::make_shared<Interpreter>(std::make_shared<const Graph>(graph));
  plan.variants.push_back(std::move(variant));
  for (const char* name : {"a.q_proj.weight", "a.o_proj.weight"}) {
    plan.owner_of[name] = name;
    plan.parameters.push_back({.entry = {.name = name}, .name = name});
  }
  return plan;
}

std::shared_ptr<const BlockParts> cut_in_parts(const BlockParts& plan, bool proves) {
  TensorRules rules;
  rules.add(json_of(R"({"q_proj": {"cut": "columns", "parts": 2}})"));
  const Constants none{std::string()};
  const Graph& graph = plan.variants[0].main.interpreter->graph();
  TensorCutter cutter(std::move(rules), {ProofInputs(graph, {}, none, at::kFloat, true)});
  return cutter.cut(plan, /*rank=*/0, /*ranks=*/2, proves);
}

}  // namespace

TEST_CASE("a head whose rows the ranks share gives its loss without gathered scores") {
  const std::string directory = program_directory("llama");
  const Manifest manifest = read_manifest(Json::parse_file(file_in(directory, "program.json")));
  const auto constants = std::make_shared<const Constants>(file_in(directory, manifest.constants));
  PlanOptions options{.data_rank = 0};
  const CutPrograms programs =
      read_programs(directory, manifest, true, [&](Graph& graph, const ProgramEntry& entry) {
        RewriteReport report;
        options.proof_inputs.emplace_back(graph, manifest.inputs, *constants, entry.dtype,
                                          entry.training);
        apply_rewrites(graph, options.proof_inputs.back(), report);
      });
  const ModelParts parts = assemble_blocks(programs, manifest, constants, options);
  for (const bool whole : {false, true}) {
    TensorRules rules;
    if (whole) rules.add(json_of(R"({"lm_head": "whole"})"));
    TensorCutter cutter(std::move(rules), options.proof_inputs);
    const auto head = cutter.cut(*parts.blocks.back(), /*rank=*/0, /*ranks=*/2, /*proves=*/true);
    const BlockVariant& variant = head->variants.front();
    CHECK(variant.product.has_value() != whole);
    if (whole) continue;
    CHECK(head->parameter(variant.product->weight).cut.padded);
    for (const Node& one : variant.product->before.interpreter->graph().nodes) {
      CHECK(one.target != "tessera.gather_columns");
    }
  }
}

TEST_CASE("the longest end of a path is its rule, and a file's rules stand before the known ones") {
  TensorRules rules;
  CHECK(rules.find("model.layers.0.self_attn.q_proj")->rule == TensorRule::kColumns);
  CHECK(rules.find("model.layers.0.conv.out_proj")->rule == TensorRule::kWhole);
  CHECK(rules.find("h.0.attn.out_proj")->rule == TensorRule::kRows);
  CHECK(rules.find("h.0.attn.c_attn")->parts == 3);
  CHECK(rules.find("h.0.attn.my_q_proj") == nullptr);
  rules.add(json_of(R"({"q_proj": "whole", "a.mixed": {"cut": "columns", "parts": 4}})"));
  CHECK(rules.find("model.layers.0.self_attn.q_proj")->rule == TensorRule::kWhole);
  CHECK(rules.find("h.a.mixed")->parts == 4);
  for (const char* wrong : {R"({"q_proj": "rank"})", R"({"q_proj": {"cut": "rows"}})",
                            R"({"q_proj": {"cut": "rows", "parts": 0}})", R"({"q_proj": 3})"}) {
    INFO(wrong);
    CHECK(require_error(
              ErrorCode::kDataLoss, [&] { TensorRules().add(json_of(wrong)); }, wrong) != "");
  }
}

TEST_CASE("a rank of a tensor axis holds its columns, rows and vocabulary") {
  const auto parameters = of_rank_0(from_program(program_directory("llama")));
  const auto shape = [&](const std::string& name) {
    return parameters.at(name).tensor.sizes().vec();
  };
  using Shape = std::vector<int64_t>;
  const std::string layer = "model.layers.1.";
  CHECK(shape(layer + "self_attn.q_proj.weight") == Shape{16, 32});
  CHECK(shape(layer + "self_attn.k_proj.weight") == Shape{8, 32});
  CHECK(shape(layer + "self_attn.o_proj.weight") == Shape{32, 16});
  CHECK(shape(layer + "mlp.gate_proj.weight") == Shape{24, 32});
  CHECK(shape(layer + "mlp.down_proj.weight") == Shape{32, 24});
  CHECK(shape(layer + "input_layernorm.weight") == Shape{32});
  CHECK(shape("model.embed_tokens.weight") == Shape{48, 32});
  CHECK(shape("lm_head.weight") == Shape{48, 32});
  CHECK(parameters.at(layer + "mlp.down_proj.weight").placement.shard.dim == 1);
  CHECK(!parameters.at(layer + "input_layernorm.weight").placement.partial());
}

TEST_CASE("adapters are cut as their layers are") {
  LoraRule rule;
  rule.r = 3;
  rule.target_modules = {"all-linear"};
  const auto parameters = of_rank_0(add_lora(from_program(program_directory("llama")), rule));
  const auto shape = [&](const std::string& name) {
    return parameters.at("base_model.model.model.layers.0." + name).tensor.sizes().vec();
  };
  using Shape = std::vector<int64_t>;
  CHECK(shape("self_attn.q_proj.lora_A.weight") == Shape{3, 32});
  CHECK(shape("self_attn.q_proj.lora_B.weight") == Shape{16, 3});
  CHECK(shape("mlp.down_proj.lora_A.weight") == Shape{3, 24});
  CHECK(shape("mlp.down_proj.lora_B.weight") == Shape{32, 3});
}

TEST_CASE("degrees of a tensor axis are those that every layer divides by") {
  CHECK(from_program(program_directory("llama")).tensor_divisor == 2);  // 2 heads of keys
  CHECK(from_program(program_directory("gpt_neox")).tensor_divisor == 4);
}

TEST_CASE("a tensor axis where rules do not reach is refused with the path") {
  CHECK_THAT(refusal(from_program(program_directory("phi3"))),
             contains("model.layers.0.self_attn.qkv_proj: no rule matches this path"));
  CHECK_THAT(refusal(from_program(program_directory("olmoe"))),
             contains("model.layers.0.self_attn.q_norm (tessera.rms_norm): it is a norm along the "
                      "dimension that the ranks share"));
  const TempDir directory;
  const std::string file = directory.path("rules.json");
  const auto with_rules = [&](const std::string& text) {
    std::ofstream(file) << text;
    return from_program(program_directory("llama"), {.tensor_rules = file});
  };
  CHECK_THAT(refusal(with_rules(R"({"o_proj": "columns"})")),
             contains("self_attn.o_proj: what it takes is shared by the ranks, so that its rule "
                      "must be rows"));
  CHECK_THAT(refusal(with_rules(R"({"up_proj": "rows"})")),
             contains("mlp.up_proj: the rule says rows, but what it takes is whole"));
  const auto whole =
      of_rank_0(with_rules(R"({"gate_proj": "whole", "up_proj": "whole", "down_proj": "whole"})"));
  CHECK(whole.at("model.layers.0.mlp.down_proj.weight").tensor.size(1) == 48);
}

TEST_CASE("a cut that no rule of shapes refuses, but whose numbers differ, is refused") {
  CHECK(cut_in_parts(every_so_many_columns(1), /*proves=*/true) != nullptr);
  const BlockParts other = every_so_many_columns(2);
  CHECK(cut_in_parts(other, /*proves=*/false) != nullptr);
  CHECK_THAT(require_error(
                 ErrorCode::kInvalidArgument, [&] { cut_in_parts(other, true); }, "its numbers"),
             contains("shared by the ranks it is another function"));
}
