// SPDX-License-Identifier: MIT
// Proofs of rewrites, and small regions that are rewritten.
#include <ATen/ATen.h>

#include <cmath>

#include "lib/program/rewrites/apply.h"
#include "lib/program/rewrites/simplify.h"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::program;
using namespace tessera::test;

namespace {

// One operator on x [3, 4], as a program has it.
Graph operator_on_x(const std::string& target, const std::vector<NamedArgument>& others) {
  Graph graph{.file = "one operator"};
  for (const char* name : {"x", "y"}) {
    graph.values.push_back(
        {.name = name, .dtype = at::kFloat, .sizes = {{.number = 3}, {.number = 4}}});
  }
  graph.inputs = {{InputKind::kHidden, "0", 0}};
  Node node{.name = "y", .target = target, .arguments = {{"self", reference(0)}}};
  node.arguments.insert(node.arguments.end(), others.begin(), others.end());
  node.outputs = {{{1}}};
  graph.nodes = {node};
  graph.outputs = {1};
  return graph;
}

Proof proof_of(const Graph& region, const Graph& replacement) {
  const Constants none{std::string()};
  return prove(region, replacement, ProofInputs(region, {}, none, at::kFloat, true));
}

}  // namespace

TEST_CASE("a replacement with other outputs or gradients has no proof") {
  const auto times = [](double factor) {
    return operator_on_x("aten.mul.Tensor", {{"other", Item(factor)}});
  };
  CHECK(proof_of(times(2), times(2)).holds);
  const Proof other = proof_of(times(2), times(2 + 1e-8));
  CHECK(!other.holds);
  CHECK_THAT(other.reason, contains("differs by"));
  CHECK(other.difference == Approx(5e-9).epsilon(0.01));
  // The value of a bound that only large numbers reach, and a gradient that stops.
  const Graph bounded =
      operator_on_x("aten.clamp.default", {{"min", Item(double{-20})}, {"max", Item(double{20})}});
  CHECK(!proof_of(bounded, times(1)).holds);
  CHECK(!proof_of(operator_on_x("aten.detach.default", {}), times(1)).holds);
  CHECK(!proof_of(times(1), operator_on_x("aten.detach.default", {})).holds);
  const Proof shapes = proof_of(times(1), operator_on_x("aten.sum.default", {}));
  CHECK_THAT(shapes.reason, contains("shape"));
}

namespace {

// Operators on tensors [3, 4], one behind the other: x, then the results by their names.
Graph chain_of(const std::vector<Node>& nodes) {
  Graph graph{.file = "chain"};
  for (size_t i = 0; i <= nodes.size(); ++i) {
    graph.values.push_back({.name = i == 0 ? std::string("x") : nodes[i - 1].name,
                            .dtype = at::kFloat,
                            .sizes = {{.number = 3}, {.number = 4}}});
  }
  graph.inputs = {{InputKind::kHidden, "0", 0}};
  graph.nodes = nodes;
  for (size_t i = 0; i < nodes.size(); ++i) {
    graph.nodes[i].outputs = {{{static_cast<ValueId>(i + 1)}}};
  }
  graph.outputs = {static_cast<ValueId>(nodes.size())};
  return graph;
}
Node on(const std::string& name, const std::string& target, std::vector<NamedArgument> arguments) {
  return {.name = name, .target = target, .arguments = std::move(arguments)};
}

}  // namespace

TEST_CASE("an operator in place gives a new tensor where nothing reads its input behind it") {
  const auto clamped = [](ValueId last) {
    Graph graph = chain_of(
        {on("a", "aten.mul.Tensor", {{"self", reference(0)}, {"other", Item(2.0)}}),
         on("b", "aten.clamp_.default", {{"self", reference(1)}, {"min", Item(0.0)}}),
         on("c", "aten.mul.Tensor", {{"self", reference(2)}, {"other", reference(last)}})});
    write_elsewhere(graph);
    return graph.nodes[1].target;
  };
  CHECK(clamped(2) == "aten.clamp.default");
  CHECK(clamped(1) == "aten.clamp_.default");  // read again, clamped
  // A router's weights divided by their sum, which reads them before; a view of them reads them.
  const auto divided = [](const char* reader, std::vector<NamedArgument> arguments, ValueId last) {
    Graph graph = chain_of(
        {on("a", "aten.mul.Tensor", {{"self", reference(0)}, {"other", Item(2.0)}}),
         on("b", reader, std::move(arguments)),
         on("c", "aten.div_.Tensor", {{"self", reference(1)}, {"other", reference(2)}}),
         on("d", "aten.mul.Tensor", {{"self", reference(3)}, {"other", reference(last)}})});
    write_elsewhere(graph);
    return graph.nodes[2].target;
  };
  CHECK(divided("aten.exp.default", {{"self", reference(1)}}, 2) == "aten.div.Tensor");
  CHECK(divided("aten.exp.default", {{"self", reference(1)}}, 1) == "aten.div_.Tensor");
  CHECK(divided("aten.alias.default", {{"self", reference(1)}}, 2) == "aten.div_.Tensor");
  // A mask of bool promotes nothing; a cast to another dtype has memory of its own.
  const auto filled = [](at::ScalarType mask, at::ScalarType cast) {
    Graph graph =
        chain_of({on("a", "aten.mul.Tensor", {{"self", reference(0)}, {"other", Item(2.0)}}),
                  on("b", "aten.to.dtype", {{"self", reference(1)}, {"dtype", cast}}),
                  on("c", "aten.ge.Scalar", {{"self", reference(2)}, {"other", Item(1.0)}}),
                  on("d", "aten.masked_fill_.Scalar",
                     {{"self", reference(1)}, {"mask", reference(3)}, {"value", Item(0.0)}})});
    graph.values[2].dtype = cast;
    graph.values[3].dtype = mask;
    write_elsewhere(graph);
    return graph.nodes[3].target;
  };
  CHECK(filled(at::kBool, at::kDouble) == "aten.masked_fill.Scalar");
  CHECK(filled(at::kBool, at::kFloat) == "aten.masked_fill_.Scalar");
  CHECK(filled(at::kDouble, at::kDouble) == "aten.masked_fill_.Scalar");
  Graph of_input =
      chain_of({on("a", "aten.clamp_.default", {{"self", reference(0)}, {"min", Item(0.0)}})});
  write_elsewhere(of_input);
  CHECK(of_input.nodes[0].target == "aten.clamp_.default");
}

TEST_CASE("a module that spells the exact GELU out becomes one operator") {
  const auto rewritten_with = [](double root) {
    Graph graph =
        chain_of({on("a", "aten.div.Tensor", {{"self", reference(0)}, {"other", Item(root)}}),
                  on("b", "aten.erf.default", {{"self", reference(1)}}),
                  on("c", "aten.add.Tensor", {{"self", reference(2)}, {"other", Item(1.0)}}),
                  on("d", "aten.mul.Tensor", {{"self", reference(0)}, {"other", Item(0.5)}}),
                  on("e", "aten.mul.Tensor", {{"self", reference(4)}, {"other", reference(3)}})});
    for (Node& node : graph.nodes) node.call = node.module_class = "GELUActivation";
    const Constants none{std::string()};
    RewriteReport report;
    apply_rewrites(graph, ProofInputs(graph, {}, none, at::kFloat, true), report);
    return graph.nodes.back().target;
  };
  CHECK(rewritten_with(std::sqrt(2.0)) == "tessera.gelu");
  CHECK(rewritten_with(1.41421) == "aten.mul.Tensor");  // differs by more than rounding
}

TEST_CASE("a region whose results would be large is refused before it is run") {
  const int64_t n = int64_t{1} << 20;
  const auto outer = [&](const std::string& target) {
    Graph graph{.file = "outer product"};
    graph.values = {
        {.name = "column", .dtype = at::kFloat, .sizes = {{.number = n}, {.number = 1}}},
        {.name = "row", .dtype = at::kFloat, .sizes = {{.number = 1}, {.number = n}}},
        {.name = "all", .dtype = at::kFloat, .sizes = {{.number = n}, {.number = n}}}};
    graph.inputs = {{InputKind::kHidden, "0", 0}, {InputKind::kHidden, "1", 1}};
    Node node{.name = "all", .target = target, .arguments = {{"self", reference(0)}}};
    node.arguments.push_back({target == "aten.mm.default" ? "mat2" : "other", reference(1)});
    node.outputs = {{{2}}};
    graph.nodes = {node};
    graph.outputs = {2};
    return graph;
  };
  for (const std::string target : {"aten.mul.Tensor", "aten.add.Tensor", "aten.mm.default"}) {
    INFO(target);
    const Proof proof = proof_of(outer(target), outer(target));
    CHECK(!proof.holds);
    CHECK_THAT(proof.reason, contains("its result would have the shape [1048576, 1048576]"));
  }
}

TEST_CASE("a proof with padding or two documents refuses attention that ignores them") {
  // y is a cumulative sum over a row's tokens, which meets the document before.
  const Extent batch{.expression = "b"}, tokens{.expression = "t"}, width{.number = 3};
  Graph sums{.file = "sums"};
  sums.values = {{.name = "x", .dtype = at::kFloat, .sizes = {batch, tokens, width}},
                 {.name = "y", .dtype = at::kFloat, .sizes = {batch, tokens, width}},
                 {.name = "ids", .dtype = at::kLong, .sizes = {batch, tokens}}};
  Graph program = sums;
  program.inputs = {{InputKind::kUser, "input_ids", 2}};
  sums.inputs = {{InputKind::kHidden, "0", 0}};
  Node node{.name = "y",
            .target = "aten.cumsum.default",
            .arguments = {{"self", reference(0)}, {"dim", Item(int64_t{1})}}};
  node.outputs = {{{1}}};
  sums.nodes = {node};
  sums.outputs = {1};
  const Constants none{std::string()};
  const ProofInputs inputs(program, {}, none, at::kFloat, true);
  CHECK(prove(sums, sums, inputs).holds);
  const Proof documents = prove(sums, sums, inputs, {.documents = true});
  CHECK(!documents.holds);
  CHECK_THAT(documents.reason, contains("differs by"));
}
