// SPDX-License-Identifier: MIT
#include "lib/program/rewrites/proof_inputs.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "tessera/core/error.h"

namespace tessera::program {
namespace {

constexpr int64_t kSizes[][4] = {{2, 7, 3, 5}, {1, 1, 1, 1}, {3, 4, 2, 6}};
constexpr int64_t kMostDrawn = int64_t{1} << 26;  // of a drawn tensor

// Sums and products of known extents, as sympy writes them: "Mul(Integer(2), Symbol('s70', ...))".
std::optional<int64_t> extent_value(std::string_view text, const Extents& extents, int levels = 8) {
  if (const auto known = extents.find(std::string(text)); known != extents.end()) {
    return known->second;
  }
  if (text.starts_with("Integer(")) {
    int64_t number = 0;
    const auto [end, wrong] = std::from_chars(text.data() + 8, text.data() + text.size(), number);
    return wrong == std::errc() && number < kMostDrawn ? std::optional(number) : std::nullopt;
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
    if (!part || total > kMostDrawn) return std::nullopt;
    total = product ? total * *part : total + *part;
    begin = i + 2;  // behind ", "
  }
  return total;
}

}  // namespace

at::Tensor padded_tokens(int64_t batch, int64_t sequence) {
  at::Tensor tokens = at::ones({batch, sequence}, at::kBool);
  const int64_t pads = sequence / 3;
  tokens[0].narrow(0, 0, pads).fill_(false);
  if (batch > 1) tokens[1].narrow(0, sequence - pads, pads).fill_(false);
  return tokens;
}

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

int64_t ProofInputs::token_dim(const Value& value) const {
  for (size_t i = 0; i < value.sizes.size() && symbols_.size() > 1; ++i) {
    if (value.sizes[i].expression == symbols_[1]) return static_cast<int64_t>(i);
  }
  return -1;
}

std::vector<at::Tensor> ProofInputs::draw_all(const Graph& graph, const Draw& how) const {
  at::Generator generator = at::detail::createCPUGenerator(1);
  std::vector<at::Tensor> values;
  for (const GraphInput& input : graph.inputs) {
    values.push_back(draw(input, graph.values[static_cast<size_t>(input.value)], how, generator));
  }
  return values;
}

at::Tensor ProofInputs::draw(const GraphInput& input, const Value& value, const Draw& how,
                             at::Generator& generator) const {
  if (input.kind == InputKind::kConstant || input.kind == InputKind::kBuffer) {
    const at::Tensor stored = constants_.read(input.name, dtype_, training_);
    return value.dtype ? stored.to(*value.dtype) : stored;
  }
  std::vector<int64_t> shape;
  double elements = 1;
  for (const Extent& extent : value.sizes) {
    const std::optional<int64_t> size =
        extent.expression.empty() ? extent.number : extent_value(extent.expression, how.extents);
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
  check(elements <= static_cast<double>(kMostDrawn), ErrorCode::kInvalidArgument,
        "it is too large to be tried: ", at::IntArrayRef(shape));
  const at::ScalarType dtype = value.dtype.value_or(at::kDouble);
  const bool places = input.kind == InputKind::kUser && input.name == "position_ids";
  if (input.kind == InputKind::kUser && input.name == "attention_mask") {
    return how.tokens.defined() ? how.tokens.to(dtype) : at::ones(shape, at::dtype(dtype));
  }
  if (places) return at::arange(shape.back(), at::dtype(dtype)).expand(shape).contiguous();
  if (!at::isFloatingType(dtype)) {
    const int64_t below = input.kind == InputKind::kUser ? 2 : how.integers;
    return at::randint(0, below, shape, generator, at::dtype(at::kLong)).to(dtype);
  }
  return at::randn(shape, generator, at::dtype(at::kDouble)).mul_(how.scale).to(dtype);
}

}  // namespace tessera::program
