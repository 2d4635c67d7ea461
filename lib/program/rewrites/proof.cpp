// SPDX-License-Identifier: MIT
#include "lib/program/rewrites/proof.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "lib/program/interpreter.h"
#include "lib/program/rewrites/region.h"
#include "tessera/core/error.h"
#include "tessera/core/micro_batch.h"
#include "tessera/model/block_context.h"

namespace tessera::program {
namespace {

constexpr uint64_t kSeed = 20261129;
constexpr double kLeastShare = 1e-3;  // of the largest tensor's magnitude: that of a smaller one
constexpr int64_t kSmallExtent = 8;
constexpr int64_t kLongRow = 256;          // one row alone has so many tokens
constexpr int64_t kPaddedRow = 9;          // tokens
constexpr int64_t kDocuments[] = {11, 4};  // tokens of the two in one row

using InputKey = std::pair<InputKind, std::string>;
using Drawn = std::map<InputKey, at::Tensor>;

// What a pass gives.
struct Passed {
  at::Tensor output;
  std::map<InputKey, at::Tensor> gradients;
};

// One size to run both with.
struct Trial {
  Draw draw = {};
  std::vector<int64_t> documents = {};  // tokens of each in a row; empty: it is one
  bool fused = false;                   // of the replacement: BlockContext::fused_layers
};

// Distinct constant extents become distinct small ones.
Graph with_small_extents(Graph graph) {
  std::map<int64_t, int64_t> small;
  for (const GraphInput& input : graph.inputs) {
    for (Extent& extent : graph.values[static_cast<size_t>(input.value)].sizes) {
      if (!extent.expression.empty() || extent.number <= kSmallExtent) continue;
      const auto next = static_cast<int64_t>(kSmallExtent + 1 + small.size());
      extent.number = small.try_emplace(extent.number, next).first->second;
    }
  }
  return graph;
}

// Copies of what was drawn, those that are trained with a gradient of zeros to add to.
Drawn leaves_of(const Graph& graph, const Drawn& drawn) {
  Drawn leaves;
  for (const GraphInput& input : graph.inputs) {
    const InputKey key{input.kind, input.name};
    at::Tensor leaf = drawn.at(key).detach().clone();
    const bool trained = input.kind == InputKind::kHidden || input.kind == InputKind::kParameter;
    if (trained && leaf.is_floating_point()) {
      leaf.set_requires_grad(true);
      leaf.mutable_grad() = at::zeros_like(leaf);
    }
    leaves[key] = leaf;
  }
  return leaves;
}

class ProofRun {
 public:
  ProofRun(const Graph& graph, const ProofInputs& inputs)
      : graph_(graph), interpreter_(std::make_shared<const Graph>(graph)), inputs_(inputs) {}

  // The region's: each document alone.
  Passed region(const Trial& trial, const Drawn& drawn, const at::Tensor& cotangent) const {
    const Drawn leaves = leaves_of(graph_, drawn);
    return backward(leaves, region_output(trial, leaves), trial, cotangent);
  }
  at::Tensor region_output(const Trial& trial, const Drawn& leaves) const {
    if (trial.documents.empty()) {  // regions may have tessera's operators, which read the mask
      const MicroBatch rows = rows_of(trial);
      return forward(leaves, {.micro_batch = &rows, .most_elements = kMostProven});
    }
    std::vector<at::Tensor> outputs;
    int64_t first = 0;
    for (const int64_t tokens : trial.documents) {
      outputs.push_back(forward(part_of(leaves, first, tokens), {.most_elements = kMostProven}));
      first += tokens;
    }
    return at::cat(outputs, 1);
  }
  // The replacement's: all documents at once.
  Passed replacement(const Trial& trial, const Drawn& drawn, const at::Tensor& cotangent) const {
    const Drawn leaves = leaves_of(graph_, drawn);
    const BlockContext block{.training = true, .fused_layers = trial.fused};
    const MicroBatch rows = rows_of(trial);
    const RunContext context{.micro_batch = &rows, .block = &block, .most_elements = kMostProven};
    return backward(leaves, forward(leaves, context), trial, cotangent);
  }

 private:
  // What the micro-batch says of the rows.
  MicroBatch rows_of(const Trial& trial) const {
    const auto [batch, sequence] = inputs_.first_two(trial.draw.extents);
    MicroBatch rows = make_micro_batch(at::zeros({batch, sequence}, at::kLong), {});
    rows.attention_mask = trial.draw.tokens;
    if (!trial.documents.empty()) rows.packed = make_packed_rows(trial.documents, sequence);
    return rows;
  }

  at::Tensor forward(const Drawn& leaves, const RunContext& context) const {
    std::vector<at::Tensor> inputs;
    for (const GraphInput& input : graph_.inputs) {
      inputs.push_back(leaves.at({input.kind, input.name}));
    }
    return interpreter_.run(std::move(inputs), context)[0];
  }

  // The document's tokens; its places begin with 0.
  Drawn part_of(const Drawn& leaves, int64_t first, int64_t tokens) const {
    Drawn part;
    for (const GraphInput& input : graph_.inputs) {
      const InputKey key{input.kind, input.name};
      const at::Tensor& whole = leaves.at(key);
      const int64_t dim = inputs_.token_dim(graph_.values[static_cast<size_t>(input.value)]);
      const bool places = input.kind == InputKind::kUser && input.name == "position_ids";
      part[key] = dim < 0 ? whole : whole.narrow(dim, places ? 0 : first, tokens);
    }
    return part;
  }

  // Queries that are no tokens count for nothing.
  Passed backward(const Drawn& leaves, const at::Tensor& output, const Trial& trial,
                  const at::Tensor& cotangent) const {
    Passed passed{.output = output.detach()};
    at::Tensor given = cotangent.defined() ? cotangent : at::ones_like(output);
    check(given.sizes() == output.sizes(), ErrorCode::kInvalidArgument,
          "their outputs have other shapes");
    if (trial.draw.tokens.defined()) {
      const at::Tensor pads = trial.draw.tokens.logical_not().unsqueeze(-1);
      passed.output = passed.output.masked_fill(pads, 0);
      given = given.masked_fill(pads, 0);
    }
    if (output.requires_grad()) {
      torch::autograd::backward({output}, {given.to(output.scalar_type())});
    }
    for (const auto& [key, leaf] : leaves) {
      if (leaf.requires_grad()) passed.gradients[key] = leaf.grad();
    }
    return passed;
  }

  const Graph& graph_;
  const Interpreter interpreter_;
  const ProofInputs& inputs_;
};

double magnitude(const at::Tensor& x) { return x.numel() == 0 ? 0 : x.abs().max().item<double>(); }

// Beside the tensor's own magnitude, least at the least: some gradients are 0 but for rounding.
double difference(const at::Tensor& actual, const at::Tensor& expected, double least) {
  check(actual.sizes() == expected.sizes() && actual.scalar_type() == expected.scalar_type(),
        ErrorCode::kInvalidArgument, "their results have other shapes or dtypes");
  if (expected.numel() == 0) return 0;
  const double worst = magnitude(actual - expected) / std::max(magnitude(expected), least);
  return worst == worst ? worst : 1e300;  // NaN: an element has no number
}

double largest_difference(const Passed& actual, const Passed& expected) {
  double largest = magnitude(expected.output);
  for (const auto& [key, gradient] : expected.gradients) {
    largest = std::max(largest, magnitude(gradient));
  }
  const double least = std::max(largest * kLeastShare, 1e-30);
  double worst = difference(actual.output, expected.output, least);
  for (const auto& [key, gradient] : expected.gradients) {
    const auto found = actual.gradients.find(key);
    // What the replacement does not read has no gradient there.
    const at::Tensor other =
        found == actual.gradients.end() ? at::zeros_like(gradient) : found->second;
    worst = std::max(worst, difference(other, gradient, least));
  }
  return worst;
}

void draw_inputs(const Graph& graph, const ProofInputs& inputs, const Draw& how,
                 at::Generator& generator, Drawn& drawn) {
  for (const GraphInput& input : graph.inputs) {
    if (drawn.contains({input.kind, input.name})) continue;
    drawn[{input.kind, input.name}] =
        inputs.draw(input, graph.values[static_cast<size_t>(input.value)], how, generator);
  }
}

std::vector<Trial> trials_of(const ProofInputs& inputs, const ProofOptions& options) {
  std::vector<Trial> trials;
  for (const Extents& extents : inputs.sizes()) {
    for (const double scale : {1.0, options.large}) {
      // Scores of weights that are as large would be lost in rounding, and no clamp is there.
      if (options.standard_normal && scale != 1) continue;
      trials.push_back({.draw = {.extents = extents, .scale = scale}});
    }
    if (options.one_size) break;
  }
  if (options.sequence > 0) {
    const int64_t rows = options.sequence > kLongRow ? 1 : 2;
    trials.push_back({.draw = {.extents = inputs.with(rows, options.sequence)}});
  }
  if (options.padded) {
    const Extents extents = inputs.with(2, kPaddedRow);
    const auto [batch, sequence] = inputs.first_two(extents);
    trials.push_back({.draw = {.extents = extents, .tokens = padded_tokens(batch, sequence)}});
  }
  for (Trial& trial : trials) trial.draw.integers = options.integers;
  const int64_t both = kDocuments[0] + kDocuments[1];
  const Extents joined = inputs.with(1, both);
  if (options.documents && inputs.first_two(joined) == std::pair(int64_t{1}, both)) {
    trials.push_back({.draw = {.extents = joined}, .documents = {kDocuments[0], kDocuments[1]}});
  }
  return trials;
}

}  // namespace

Proof prove(const Graph& region, const Graph& replacement, const ProofInputs& inputs,
            const ProofOptions& options) {
  const auto prepared = [&](const Graph& graph) {
    return in_double(options.any_extent ? with_small_extents(graph) : graph);
  };
  const Graph expected = prepared(region), actual = prepared(replacement);
  at::Generator generator = at::detail::createCPUGenerator(kSeed);
  Proof proof;
  try {
    const ProofRun region_run(expected, inputs), replacement_run(actual, inputs);
    for (Trial& trial : trials_of(inputs, options)) {
      Drawn drawn;
      draw_inputs(expected, inputs, trial.draw, generator, drawn);
      draw_inputs(actual, inputs, trial.draw, generator, drawn);
      at::Tensor cotangent;
      {
        const at::NoGradGuard none;
        const at::Tensor output = region_run.region_output(trial, drawn);
        cotangent = at::randn(output.sizes(), generator, at::dtype(at::kDouble));
      }
      const at::AutoGradMode with_gradients(true);
      const Passed wanted = region_run.region(trial, drawn, cotangent);
      for (const bool fused : {false, true}) {
        if (fused && !options.fused) continue;
        trial.fused = fused;
        const double found =
            largest_difference(replacement_run.replacement(trial, drawn, cotangent), wanted);
        proof.difference = std::max(proof.difference, found);
      }
    }
  } catch (const Error& error) {
    proof.reason = error.what();
    return proof;
  } catch (const c10::Error& error) {
    proof.reason = error.what_without_backtrace();
    return proof;
  }
  proof.holds = proof.difference <= kProofTolerance;
  if (!proof.holds) proof.reason = concat("differs by ", proof.difference);
  return proof;
}

}  // namespace tessera::program
