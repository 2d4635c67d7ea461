// SPDX-License-Identifier: MIT
#include "lib/program/rewrites/proof.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "lib/program/interpreter.h"
#include "lib/program/rewrites/region.h"
#include "tessera/core/error.h"
#include "tessera/model/block_context.h"

namespace tessera::program {
namespace {

constexpr uint64_t kSeed = 20261129;
constexpr int64_t kSizes[][4] = {{2, 7, 3, 5}, {1, 1, 1, 1}, {3, 4, 2, 6}};
constexpr double kScales[] = {1, 30};  // the larger goes past clamps
constexpr double kLeastShare = 1e-3;   // of the largest tensor's magnitude: that of a smaller one
constexpr int64_t kSmallExtent = 8;
constexpr int64_t kMostElements = int64_t{1} << 26;  // of a drawn tensor

using InputKey = std::pair<InputKind, std::string>;
using Drawn = std::map<InputKey, at::Tensor>;

struct Outcome {
  at::Tensor output;
  std::map<InputKey, at::Tensor> gradients;
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

Outcome run(const Graph& graph, const Drawn& drawn, const at::Tensor& cotangent,
            bool fused = false) {
  const Interpreter interpreter(std::make_shared<const Graph>(graph));
  Outcome outcome;
  std::map<InputKey, at::Tensor> leaves;
  std::vector<at::Tensor> inputs;
  for (const GraphInput& input : graph.inputs) {
    const InputKey key{input.kind, input.name};
    at::Tensor given = drawn.at(key).detach().clone();
    const bool trained = input.kind == InputKind::kHidden || input.kind == InputKind::kParameter;
    if (trained && given.is_floating_point()) {
      given.set_requires_grad(true);
      given.mutable_grad() = at::zeros_like(given);
      leaves[key] = given;
    }
    inputs.push_back(given);
  }
  const at::AutoGradMode with_gradients(true);
  const BlockContext context{.training = true, .fused_layers = fused};
  outcome.output = interpreter.run(inputs, RunContext{.block = &context})[0];
  if (outcome.output.requires_grad()) {
    const at::Tensor given = cotangent.defined() ? cotangent : at::ones_like(outcome.output);
    check(given.sizes() == outcome.output.sizes(), ErrorCode::kInvalidArgument,
          "their outputs have other shapes");
    torch::autograd::backward({outcome.output}, {given.to(outcome.output.scalar_type())});
  }
  for (const auto& [key, leaf] : leaves) outcome.gradients[key] = leaf.grad();
  return outcome;
}

double magnitude(const at::Tensor& x) { return x.numel() == 0 ? 0 : x.abs().max().item<double>(); }

// Beside the tensor's own magnitude, least at the least: some gradients are 0 but for rounding.
double difference(const at::Tensor& actual, const at::Tensor& expected, double least) {
  check(actual.sizes() == expected.sizes() && actual.scalar_type() == expected.scalar_type(),
        ErrorCode::kInvalidArgument, "their results have other shapes or dtypes");
  if (expected.numel() == 0) return 0;
  const double worst = magnitude(actual - expected) / std::max(magnitude(expected), least);
  return worst == worst ? worst : 1e300;  // NaN: an element has no number
}

double largest_difference(const Outcome& actual, const Outcome& expected) {
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

// The output's value tells the shape of its gradient.
at::Tensor cotangent_of(const Graph& graph, const Drawn& drawn, at::Generator& generator) {
  const at::NoGradGuard none;
  const Interpreter interpreter(std::make_shared<const Graph>(graph));
  std::vector<at::Tensor> inputs;
  for (const GraphInput& input : graph.inputs) inputs.push_back(drawn.at({input.kind, input.name}));
  const at::Tensor output = interpreter.run(std::move(inputs), RunContext{})[0];
  return at::randn(output.sizes(), generator, at::dtype(at::kDouble));
}

void draw_inputs(const Graph& graph, const ProofInputs& inputs, const Extents& extents,
                 double scale, at::Generator& generator, Drawn& drawn) {
  for (const GraphInput& input : graph.inputs) {
    if (drawn.contains({input.kind, input.name})) continue;
    drawn[{input.kind, input.name}] = inputs.draw(
        input, graph.values[static_cast<size_t>(input.value)], extents, scale, generator);
  }
}

// Sums and products of known extents, as sympy writes them: "Mul(Integer(2), Symbol('s70', ...))".
std::optional<int64_t> extent_value(std::string_view text, const Extents& extents, int levels = 8) {
  if (const auto known = extents.find(std::string(text)); known != extents.end()) {
    return known->second;
  }
  if (text.starts_with("Integer(")) {
    int64_t number = 0;
    const auto [end, wrong] = std::from_chars(text.data() + 8, text.data() + text.size(), number);
    return wrong == std::errc() && number < kMostElements ? std::optional(number) : std::nullopt;
  }
  const bool product = text.starts_with("Mul(");
  if (levels == 0 || (!product && !text.starts_with("Add("))) return std::nullopt;
  int64_t total = product ? 1 : 0;
  int depth = 0;
  for (size_t i = 4, begin = 4; i < text.size(); ++i) {
    const bool ends = depth == 0 && (text[i] == ',' || text[i] == ')');
    if (text[i] == '(') ++depth;
    if (text[i] == ')') --depth;
    if (!ends) continue;
    const auto part = extent_value(text.substr(begin, i - begin), extents, levels - 1);
    if (!part || total > kMostElements) return std::nullopt;
    total = product ? total * *part : total + *part;
    begin = i + 2;  // behind ", "
  }
  return total;
}

}  // namespace

ProofInputs::ProofInputs(const Graph& graph, std::vector<InputEntry> entries,
                         const Constants& constants, at::ScalarType dtype, bool training)
    : constants_(constants), dtype_(dtype), training_(training) {
  size_t user = 0;
  for (const GraphInput& input : graph.inputs) {
    if (input.kind != InputKind::kUser) continue;
    const auto& sizes = graph.values[static_cast<size_t>(input.value)].sizes;
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d].expression.empty() || ranges_.contains(sizes[d].expression)) continue;
      symbols_.push_back(sizes[d].expression);
      const bool known = user < entries.size() && d < entries[user].dims.size();
      ranges_[symbols_.back()] = known ? entries[user].dims[d] : InputEntry::Range{};
    }
    ++user;
  }
  for (const auto& wanted : kSizes) {
    Extents extents;
    for (size_t i = 0; i < symbols_.size(); ++i) {
      extents[symbols_[i]] = within(symbols_[i], wanted[i % std::size(wanted)]);
    }
    sizes_.push_back(std::move(extents));
  }
}

int64_t ProofInputs::within(const std::string& expression, int64_t wanted) const {
  const InputEntry::Range& range = ranges_.at(expression);
  return std::min(std::max(wanted, range.least), range.most);
}

Extents ProofInputs::with(int64_t batch, int64_t sequence) const {
  Extents extents = sizes_[0];
  if (!symbols_.empty()) extents[symbols_[0]] = within(symbols_[0], batch);
  if (symbols_.size() > 1) extents[symbols_[1]] = within(symbols_[1], sequence);
  return extents;
}

std::pair<int64_t, int64_t> ProofInputs::first_two(const Extents& extents) const {
  const auto extent = [&](size_t place) {
    return place < symbols_.size() ? extents.at(symbols_[place]) : int64_t{1};
  };
  return {extent(0), extent(1)};
}

bool ProofInputs::reaches(int64_t sequence) const {
  return symbols_.size() > 1 && ranges_.at(symbols_[1]).most >= sequence;
}

at::Tensor ProofInputs::draw(const GraphInput& input, const Value& value, const Extents& extents,
                             double scale, at::Generator& generator) const {
  if (input.kind == InputKind::kConstant || input.kind == InputKind::kBuffer) {
    const at::Tensor stored = constants_.read(input.name, dtype_, training_);
    return value.dtype ? stored.to(*value.dtype) : stored;
  }
  std::vector<int64_t> shape;
  double elements = 1;
  for (const Extent& extent : value.sizes) {
    const std::optional<int64_t> size =
        extent.expression.empty() ? extent.number : extent_value(extent.expression, extents);
    check(size.has_value(), ErrorCode::kInvalidArgument, "its extent ", extent.expression,
          " is none of the program's inputs");
    shape.push_back(*size);
    elements *= static_cast<double>(*size);
  }
  // Operators take them by place, each angle once.
  if (input.kind == InputKind::kTable) {
    shape.erase(shape.begin(), shape.end() - 2);
    shape.back() /= 2;
  }
  check(elements <= static_cast<double>(kMostElements), ErrorCode::kInvalidArgument,
        "it is too large to be tried: ", at::IntArrayRef(shape));
  const at::ScalarType dtype = value.dtype.value_or(at::kDouble);
  const bool places = input.kind == InputKind::kUser && input.name == "position_ids";
  if (input.kind == InputKind::kUser && input.name == "attention_mask") {
    return at::ones(shape, at::dtype(dtype));
  }
  if (places) return at::arange(shape.back(), at::dtype(dtype)).expand(shape).contiguous();
  if (!at::isFloatingType(dtype)) {
    return at::randint(0, 2, shape, generator, at::dtype(at::kLong)).to(dtype);
  }
  return at::randn(shape, generator, at::dtype(at::kDouble)).mul_(scale).to(dtype);
}

Proof prove(const Graph& region, const Graph& replacement, const ProofInputs& inputs,
            const ProofOptions& options) {
  const auto prepared = [&](const Graph& graph) {
    return in_double(options.any_extent ? with_small_extents(graph) : graph);
  };
  const Graph expected = prepared(region), actual = prepared(replacement);
  at::Generator generator = at::detail::createCPUGenerator(kSeed);
  std::vector<Extents> sizes = inputs.sizes();
  if (options.sequence > 0) sizes.push_back(inputs.with(2, options.sequence));
  Proof proof;
  try {
    for (const Extents& extents : sizes) {
      for (const double scale : kScales) {
        // Scores of weights that are as large would be lost in rounding, and no clamp is there.
        if (options.whole_layer && scale != 1) continue;
        Drawn drawn;
        draw_inputs(expected, inputs, extents, scale, generator, drawn);
        draw_inputs(actual, inputs, extents, scale, generator, drawn);
        const at::Tensor cotangent = cotangent_of(expected, drawn, generator);
        const Outcome wanted = run(expected, drawn, cotangent);
        for (const bool fused : {false, true}) {
          if (fused && !options.whole_layer) continue;
          const double found = largest_difference(run(actual, drawn, cotangent, fused), wanted);
          proof.difference = std::max(proof.difference, found);
        }
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
