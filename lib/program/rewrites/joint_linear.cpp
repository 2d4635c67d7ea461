// SPDX-License-Identifier: MIT
#include "lib/program/rewrites/joint_linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "lib/models/block_products.h"
#include "lib/program/program_cut.h"
#include "lib/program/rewrites/region.h"
#include "tessera/core/error.h"
#include "tessera/ops/functional.h"
#include "tessera/ops/kernels.h"

namespace tessera::program {
namespace {

constexpr const char* kJointLinear = "tessera.joint_linear";

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

ProductWeights product_of(const std::vector<at::Tensor>& tensors, bool biased) {
  const size_t count = biased ? tensors.size() / 2 : tensors.size();
  ProductWeights product;
  for (size_t i = 0; i < count; ++i) product.weights.push_back(tensors[i]);
  for (size_t i = count; i < tensors.size(); ++i) product.biases.push_back(tensors[i]);
  return product;
}

ProductWeights gradients_of(const ProductWeights& product) {
  ProductWeights gradients;
  for (const at::Tensor& weight : product.weights) gradients.weights.push_back(weight.grad());
  for (const at::Tensor& bias : product.biases) gradients.biases.push_back(bias.grad());
  return gradients;
}

// Whether one product serves all, and its gradients may be added where they belong.
bool is_direct(const at::Tensor& x, const ProductWeights& product) {
  if (!at::GradMode::is_enabled()) return false;
  for (const auto* tensors : {&product.weights, &product.biases}) {
    for (const at::Tensor& one : *tensors) {
      const bool direct = one.requires_grad() && one.is_leaf() && one.grad().defined() &&
                          one.grad().is_contiguous() && one.scalar_type() == x.scalar_type();
      if (!direct) return false;
    }
  }
  const ProductWeights gradients = gradients_of(product);
  return detail::adjacent(product.weights).defined() &&
         detail::adjacent(gradients.weights).defined();
}

// Adds the gradients of weights and biases where they belong (the Block contract).
class JointLinear : public torch::autograd::Function<JointLinear> {
 public:
  // first: one of the tensors, which is trained.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& /*first*/, const std::vector<at::Tensor>& tensors,
                            bool biased) {
    context->save_for_backward({x});
    context->saved_data["tensors"] = tensors;
    context->saved_data["biased"] = biased;
    context->saved_data["x_wanted"] = x.requires_grad();
    const ProductWeights product = product_of(tensors, biased);
    return at::linear(x, detail::weight_of(product), detail::bias_of(product));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0].contiguous();
    const at::Tensor gradient = gradients[0].contiguous();
    const ProductWeights product = product_of(context->saved_data["tensors"].toTensorVector(),
                                              context->saved_data["biased"].toBool());
    variable_list results(4);
    if (context->saved_data["x_wanted"].toBool()) {
      results[0] = ops::linear_backward_input(gradient, detail::weight_of(product));
    }
    const ProductWeights sinks = gradients_of(product);
    detail::add_weight(gradient, x, product, sinks);
    if (product.biases.empty()) return results;
    const at::Tensor sums = gradient.reshape({-1, gradient.size(-1)}).sum(0);
    int64_t column = 0;
    for (const at::Tensor& bias : sinks.biases) {
      bias.add_(sums.narrow(0, column, bias.numel()));
      column += bias.numel();
    }
    return results;
  }
};

std::vector<at::Tensor> run_joint_linear(const std::vector<c10::IValue>& arguments,
                                         const RunContext&) {
  const at::Tensor& x = arguments[0].toTensor();
  std::vector<at::Tensor> tensors;
  for (size_t i = 2; i < arguments.size(); ++i) tensors.push_back(arguments[i].toTensor());
  const bool biased = arguments[1].toBool();
  const ProductWeights product = product_of(tensors, biased);
  std::vector<int64_t> widths;
  for (size_t i = 0; i < product.weights.size(); ++i) widths.push_back(product.outputs(i));
  if (is_direct(x, product)) {
    return JointLinear::apply(x, product.weights[0], tensors, biased).split_with_sizes(widths, -1);
  }
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < product.weights.size(); ++i) {
    results.push_back(ops::linear(x, product.weights[i],
                                  product.biases.empty() ? at::Tensor() : product.biases[i]));
  }
  return results;
}

// "model.layers.0.self_attn" of "model.layers.0.self_attn.q_proj.weight"; empty: it has none.
std::string parent_of(const std::string& parameter) {
  const size_t layer = parameter.rfind('.');
  const size_t parent = layer == std::string::npos ? layer : parameter.rfind('.', layer - 1);
  return parent == std::string::npos ? std::string() : parameter.substr(0, parent);
}

class Joiner {
 public:
  Joiner(const Graph& piece, const ProofInputs& inputs, Proofs& proofs, RewriteReport& report)
      : piece_(piece), facts_(piece), inputs_(inputs), proofs_(proofs), report_(report) {
    for (const GraphInput& input : piece.inputs) {
      if (input.kind == InputKind::kParameter) parameters_[input.value] = input.name;
    }
    for (const Node& node : piece.nodes) {
      visit_reads(node, [&](ValueId id) { ++reads_[id]; });
    }
  }

  std::optional<Graph> join() {
    Graph joined = piece_;
    bool any = false;
    for (const std::vector<size_t>& group : groups()) {
      if (group.size() < 2) continue;
      Graph tried = with_group(joined, group);
      if (!proven(tried, group)) continue;
      joined = std::move(tried);
      any = true;
    }
    if (!any) return std::nullopt;
    // Layers that were joined have no results of their own any more.
    std::erase_if(joined.nodes, [](const Node& node) { return node.outputs.empty(); });
    return joined;
  }

 private:
  // Linear layers by input and parent, in the order in which they run.
  std::vector<std::vector<size_t>> groups() const {
    std::vector<std::vector<size_t>> all;
    std::map<std::pair<ValueId, std::string>, size_t> places;
    for (size_t i = 0; i < piece_.nodes.size(); ++i) {
      const Node& node = piece_.nodes[i];
      const ValueId weight = node.target == "tessera.linear" ? value_of(node, "weight") : kNoValue;
      if (weight == kNoValue || !is_own(weight)) continue;
      const ValueId bias = value_of(node, "bias");
      const std::string parent = parent_of(parameters_.at(weight));
      if (parent.empty() || (bias != kNoValue && !is_own(bias))) continue;
      const std::string kind = concat(parent, bias == kNoValue ? "" : " biased");
      const auto [known, added] = places.try_emplace({value_of(node, "x"), kind}, all.size());
      if (added) all.emplace_back();
      all[known->second].push_back(i);
    }
    return all;
  }
  bool is_own(ValueId id) const { return parameters_.contains(id) && reads_.at(id) == 1; }

  static Graph with_group(Graph graph, const std::vector<size_t>& group) {
    Node& joint = graph.nodes[group.front()];
    const bool biased = value_of(joint, "bias") != kNoValue;
    Output results{.values = {}, .is_list = true};
    std::vector<NamedArgument> arguments = {{"x", reference(value_of(joint, "x"))},
                                            {"biased", Item(biased)}};
    for (const char* name : {"weight", "bias"}) {
      for (size_t i = 0; i < group.size() && (biased || *name == 'w'); ++i) {
        arguments.push_back({concat(name, i), reference(value_of(graph.nodes[group[i]], name))});
      }
    }
    for (const size_t place : group) {
      results.values.push_back(result_of(graph.nodes[place]));
      graph.nodes[place].outputs.clear();
    }
    joint.target = kJointLinear;
    joint.arguments = std::move(arguments);
    joint.outputs = {std::move(results)};
    return graph;
  }

  // Each result beside the layer's own.
  bool proven(const Graph& tried, const std::vector<size_t>& group) {
    const Node& first = piece_.nodes[group.front()];
    RewriteResult result{.rewrite = "joint product",
                         .module_class = first.module_class,
                         .first = parent_of(parameters_.at(value_of(first, "weight"))),
                         .replaced = true};
    const GraphFacts facts(tried);
    for (const size_t place : group) {
      const ValueId output = result_of(piece_.nodes[place]), x = value_of(first, "x");
      const auto region = region_between(piece_, facts_, {x}, output),
                 replacement = region_between(tried, facts, {x}, output);
      if (!region || !replacement) return false;
      const Proof& proof = proof_of(*region, *replacement);
      result.difference = std::max(result.difference, proof.difference);
      result.replaced = result.replaced && proof.holds;
      if (!proof.holds) result.reason = proof.reason;
    }
    report_.add(result);
    return result.replaced;
  }

  const Proof& proof_of(const Graph& region, const Graph& replacement) {
    const std::string key = text_of(region) + "\n" + text_of(replacement);
    const auto known = proofs_.find(key);
    if (known != proofs_.end()) return known->second;
    return proofs_.emplace(key, prove(region, replacement, inputs_, {.any_extent = true}))
        .first->second;
  }

  const Graph& piece_;
  const GraphFacts facts_;
  const ProofInputs& inputs_;
  Proofs& proofs_;
  RewriteReport& report_;
  std::map<ValueId, std::string> parameters_;
  std::map<ValueId, int> reads_;
};

}  // namespace

const OwnOperator& joint_linear() {
  static const OwnOperator own{.target = kJointLinear, .run_list = run_joint_linear};
  return own;
}

std::optional<Graph> with_joint_products(const Graph& piece, const ProofInputs& inputs,
                                         Proofs& proofs, RewriteReport& report) {
  return Joiner(piece, inputs, proofs, report).join();
}

std::vector<ValueId> adjacent_parameters(const Node& node) {
  if (node.target == "tessera.decoder_layer") return layer_parameters(node);
  std::vector<ValueId> ids;
  if (node.target != kJointLinear) return ids;
  visit_reads(node, [&](ValueId id) { ids.push_back(id); });
  ids.erase(ids.begin());  // x
  return ids;
}

}  // namespace tessera::program
