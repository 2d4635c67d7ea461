// SPDX-License-Identifier: MIT
#include "lib/program/rewrites/mask_form.h"

#include <ATen/ATen.h>

#include <algorithm>
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
constexpr int64_t kNoBound = int64_t{1} << 40;  // ends of slices that take all
constexpr const char* kPadding = "attention_mask";
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

class MaskReader {
 public:
  MaskReader(const Graph& region, const ProofInputs& inputs)
      : region_(region), interpreter_(std::make_shared<const Graph>(region)), inputs_(inputs) {}

  // bool [batch, sequence, sequence]. tokens: bool [batch, sequence].
  at::Tensor read(const Extents& extents, const at::Tensor& tokens) {
    const at::NoGradGuard none;
    const at::Tensor mask = interpreter_.run(
        inputs_.draw_all(region_, {.extents = extents, .tokens = tokens}), kCapped)[0];
    const int64_t batch = tokens.size(0), sequence = tokens.size(1);
    check(mask.dim() == 4 && mask.size(1) == 1, ErrorCode::kInvalidArgument, "the mask is ",
          mask.sizes(), ", expected one for all heads");
    return visible(mask).expand({batch, 1, sequence, sequence}).squeeze(1);
  }

  bool is_padded() const {
    return std::any_of(region_.inputs.begin(), region_.inputs.end(), is_padding);
  }

 private:
  static bool is_padding(const GraphInput& input) {
    return input.kind == InputKind::kUser && input.name == kPadding;
  }
  // Added to the scores: 0, or what takes a key away.
  static at::Tensor visible(const at::Tensor& mask) {
    if (mask.scalar_type() == at::kBool) return mask;
    const at::Tensor seen = mask.eq(0), hidden = mask.lt(-1e4);
    check(seen.logical_or(hidden).all().item<bool>(), ErrorCode::kInvalidArgument,
          "the mask changes scores");
    return seen;
  }

  const Graph& region_;
  Interpreter interpreter_;
  const ProofInputs& inputs_;
};

bool is_causal(const at::Tensor& mask, const at::Tensor& tokens, int64_t window) {
  const int64_t sequence = tokens.size(1);
  at::Tensor expected = at::ones({sequence, sequence}, at::kBool).tril();
  if (window > 0) expected = expected.triu(1 - window);
  const at::Tensor seen = expected.unsqueeze(0).logical_and(tokens.unsqueeze(1));
  return mask.eq(seen).logical_or(tokens.logical_not().unsqueeze(2)).all().item<bool>();
}

}  // namespace

MaskForm form_of_mask(const Graph& graph, const GraphFacts& facts, ValueId mask,
                      const ProofInputs& inputs) {
  const std::optional<Graph> region = region_between(graph, facts, {}, mask);
  if (!region) return {.reason = "its mask writes to memory"};
  std::set<int64_t> lengths = {1, 2, 7, 12};
  for (const int64_t bound : bounds_of(*region)) {
    const int64_t beyond = bound + kBeyond;
    if (beyond > kLargestWindow + kBeyond && inputs.reaches(beyond)) {
      return {.reason = concat("a bound of ", bound, " in its mask is not tried; at most ",
                               kLargestWindow, " is")};
    }
    if (inputs.reaches(beyond)) lengths.insert(beyond);
  }
  MaskForm form;
  try {
    MaskReader reader(*region, inputs);
    form.padded = reader.is_padded();
    const auto read = [&](int64_t length, bool pads) {
      const Extents extents = inputs.with(kBatch, length);
      const auto [batch, sequence] = inputs.first_two(extents);
      const at::Tensor tokens =
          pads ? padded_tokens(batch, sequence) : at::ones({batch, sequence}, at::kBool);
      return std::pair(reader.read(extents, tokens), tokens);
    };
    const at::Tensor longest = read(*lengths.rbegin(), false).first;
    const int64_t last = longest[0][-1].sum().item<int64_t>();
    if (last < longest.size(2)) form.window = last;
    for (const int64_t length : lengths) {
      for (const bool pads : {false, true}) {
        if (pads && !form.padded) continue;
        const auto [seen, tokens] = read(length, pads);
        if (is_causal(seen, tokens, form.window)) continue;
        form.reason = concat("its mask is not causal at ", length, " tokens");
        return form;
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
