// SPDX-License-Identifier: MIT
#include "lib/program/rewrites/mask_form.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <set>
#include <vector>

#include "lib/program/interpreter.h"
#include "lib/program/rewrites/region.h"
#include "tessera/core/error.h"

namespace tessera::program {
namespace {

constexpr double kTableTolerance = 1e-6;  // cosines differ in the last bit by their place
constexpr int64_t kBatch = 2, kBeyond = 5;
constexpr int64_t kShort = 64;                  // rows of more tokens are tried alone
constexpr int64_t kNoBound = int64_t{1} << 40;  // ends of slices that take all
constexpr const char* kPadding = "attention_mask";
constexpr double kHidden = -std::numeric_limits<double>::infinity();
constexpr double kLeastBias = -1e4;      // less takes a key away
constexpr double kBiasTolerance = 1e-6;  // the proof has the last word
const RunContext kCapped{.most_elements = kMostProven};

// Whole numbers among the arguments, which may bound the keys.
std::set<int64_t> bounds_of(const Graph& region) {
  std::set<int64_t> bounds;
  const auto look = [&](const Item& item) {
    const auto* number = std::get_if<int64_t>(&item);
    if (number != nullptr && *number > 1 && *number < kNoBound) bounds.insert(*number);
  };
  for (const Node& node : region.nodes) {
    for (const NamedArgument& argument : node.arguments) {
      if (const auto* one = std::get_if<Item>(&argument.value)) look(*one);
    }
  }
  return bounds;
}

class BiasReader {
 public:
  BiasReader(const Graph& region, const ProofInputs& inputs)
      : region_(region), interpreter_(std::make_shared<const Graph>(region)), inputs_(inputs) {}

  // fp64 [batch, 1 or heads, sequence, sequence], -inf for keys that are not seen. tokens: bool
  // [batch, sequence].
  at::Tensor read(const Extents& extents, const at::Tensor& tokens) {
    const at::NoGradGuard none;
    const at::Tensor bias = interpreter_.run(
        inputs_.draw_all(region_, {.extents = extents, .scale = 0, .tokens = tokens}), kCapped)[0];
    const int64_t batch = tokens.size(0), sequence = tokens.size(1);
    check(bias.dim() == 4, ErrorCode::kInvalidArgument, "the mask is ", bias.sizes(),
          ", expected [batch, heads, queries, keys]");
    return by_head(bias).expand({batch, -1, sequence, sequence});
  }

  bool is_padded() const {
    return std::any_of(region_.inputs.begin(), region_.inputs.end(), is_padding);
  }

 private:
  static bool is_padding(const GraphInput& input) {
    return input.kind == InputKind::kUser && input.name == kPadding;
  }
  static at::Tensor by_head(const at::Tensor& bias) {
    if (bias.scalar_type() == at::kBool) {
      return at::zeros(bias.sizes(), at::kDouble).masked_fill_(bias.logical_not(), kHidden);
    }
    return bias.masked_fill(bias.lt(kLeastBias), kHidden).to(at::kDouble);
  }

  const Graph& region_;
  Interpreter interpreter_;
  const ProofInputs& inputs_;
};

// Values without are zeros of their shape, or of one element.
Graph without_scores(Graph region, const ScoreBias& bias) {
  region = in_double(std::move(region));
  for (const GraphInput& input : region.inputs) {
    if (input.kind != InputKind::kHidden || !bias.broadcasts) continue;
    for (Extent& extent : region.values[static_cast<size_t>(input.value)].sizes) {
      extent = {.number = 1};
    }
  }
  return region;
}

// What each head adds from a key to the next one, at the last query.
std::vector<double> slopes_of(const at::Tensor& bias) {
  const int64_t n = bias.size(2);
  const at::Tensor last = bias.select(0, 0).select(1, n - 1);
  const at::Tensor slopes = last.select(1, n - 1) - last.select(1, n - 2);
  if (!slopes.isfinite().all().item<bool>() || slopes.eq(0).all().item<bool>()) return {};
  const auto* first = slopes.contiguous().const_data_ptr<double>();
  return {first, first + slopes.numel()};
}

// Why it has another form; empty: it has this one. What is the same for all keys of a query changes
// nothing.
std::string other_form(const at::Tensor& bias, const at::Tensor& tokens, const MaskForm& form) {
  const int64_t sequence = tokens.size(1);
  at::Tensor expected = at::ones({sequence, sequence}, at::kBool).tril();
  if (form.window > 0) expected = expected.triu(1 - form.window);
  const at::Tensor pads = tokens.logical_not().unsqueeze(1).unsqueeze(3);
  const at::Tensor wanted = expected.unsqueeze(0).logical_and(tokens.unsqueeze(1)).unsqueeze(1);
  const at::Tensor seen = bias.gt(kHidden);
  if (!seen.eq(wanted).logical_or_(pads).all().item<bool>()) {
    return concat("its mask is not causal at ", sequence, " tokens");
  }
  const at::Tensor counts = wanted.logical_and(pads.logical_not());
  if (!bias.ne(0).logical_and_(counts).any().item<bool>() && form.slopes.empty()) return "";
  at::Tensor beside = bias - bias.diagonal(0, 2, 3).unsqueeze(3);
  if (!form.slopes.empty()) {
    const at::Tensor places = at::arange(sequence, at::kDouble);
    beside = beside - at::tensor(form.slopes, at::kDouble).view({1, -1, 1, 1}) *
                          (places - places.unsqueeze(1));
  }
  const at::Tensor small = (beside.abs() <= kBiasTolerance).logical_or_(counts.logical_not());
  return small.all().item<bool>() ? std::string() : "its mask changes scores";
}

}  // namespace

MaskForm form_of_bias(const Graph& graph, const GraphFacts& facts, const ScoreBias& bias,
                      const ProofInputs& inputs) {
  std::optional<Graph> found = region_between(graph, facts, bias.without, bias.output);
  if (!found) return {.reason = "its mask writes to memory"};
  const Graph region = without_scores(std::move(*found), bias);
  for (const GraphInput& input : region.inputs) {
    if (input.kind == InputKind::kParameter) return {.reason = "parameters enter its mask"};
  }
  std::set<int64_t> lengths = {1, 2, 7, 12};
  for (const int64_t bound : bounds_of(region)) {
    const int64_t beyond = bound + kBeyond;
    if (beyond > kLargestWindow + kBeyond && inputs.reaches(beyond)) {
      return {.reason = concat("a bound of ", bound, " in its mask is not tried; at most ",
                               kLargestWindow, " is")};
    }
    if (inputs.reaches(beyond)) lengths.insert(beyond);
  }
  MaskForm form;
  try {
    BiasReader reader(region, inputs);
    form.padded = reader.is_padded();
    const auto read = [&](int64_t length, bool pads) {
      const int64_t rows = pads || length <= kShort ? kBatch : 1;
      const Extents extents = inputs.with(rows, length);
      const auto [batch, sequence] = inputs.first_two(extents);
      const at::Tensor tokens =
          pads ? padded_tokens(batch, sequence) : at::ones({batch, sequence}, at::kBool);
      return std::pair(reader.read(extents, tokens), tokens);
    };
    const at::Tensor longest = read(*lengths.rbegin(), false).first;
    const int64_t last = longest[0][0][-1].gt(kHidden).sum().item<int64_t>();
    if (last < longest.size(2)) form.window = last;
    if (longest.size(2) > 1) form.slopes = slopes_of(longest);
    for (const int64_t length : lengths) {
      for (const bool pads : {false, true}) {
        if (pads && !form.padded) continue;
        const auto [seen, tokens] = read(length, pads);
        form.reason = other_form(seen, tokens, form);
        if (!form.reason.empty()) return form;
      }
    }
  } catch (const Error& error) {
    form.reason = error.what();
  } catch (const c10::Error& error) {
    form.reason = error.what_without_backtrace();
  }
  return form;
}

bool is_table_by_place(const Graph& graph, const GraphFacts& facts, ValueId table,
                       const ProofInputs& inputs) {
  const std::optional<Graph> region = region_between(graph, facts, {}, table);
  if (!region) return false;
  const Interpreter interpreter(std::make_shared<const Graph>(*region));
  const auto rows_of = [&](int64_t batch, int64_t length) {  // [any, length, n]
    const at::NoGradGuard none;
    const Extents extents = inputs.with(batch, length);
    const at::Tensor result =
        interpreter.run(inputs.draw_all(*region, {.extents = extents}), kCapped)[0];
    return result.reshape({-1, inputs.first_two(extents).second, result.size(-1)});
  };
  std::vector<std::pair<int64_t, int64_t>> shapes = {{1, 1}, {2, 5}, {3, 32}, {1, 67}};
  for (const int64_t bound : bounds_of(*region)) {
    if (!inputs.reaches(bound + kBeyond)) continue;
    if (bound > kLargestWindow) return false;
    shapes.emplace_back(1, bound + kBeyond);
  }
  try {
    const auto last = std::max_element(shapes.begin(), shapes.end(),
                                       [](auto& a, auto& b) { return a.second < b.second; });
    const at::Tensor longest = rows_of(1, last->second)[0];
    for (const auto& [batch, length] : shapes) {
      const at::Tensor rows = rows_of(batch, length);
      if (rows.size(1) > longest.size(0)) return false;
      const at::Tensor same = longest.narrow(0, 0, rows.size(1)).expand_as(rows);
      if (!((rows - same).abs().max().item<double>() <= kTableTolerance)) return false;
    }
  } catch (const c10::Error&) {
    return false;
  } catch (const Error&) {
    return false;
  }
  return true;
}

}  // namespace tessera::program
