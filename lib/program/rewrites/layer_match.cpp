// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "lib/program/rewrites/layer_arguments.h"

namespace tessera::program {
namespace {

// Nodes of the rewritten program.

struct Linear {
  ValueId x = kNoValue, weight = kNoValue, bias = kNoValue;
};
struct Norm {
  ValueId x = kNoValue, weight = kNoValue, bias = kNoValue;
  double epsilon = 0;
};

const Node* maker_with(const ProgramView& view, ValueId id, std::string_view target) {
  const Node* node = id == kNoValue ? nullptr : view.maker(id);
  return node != nullptr && node->target == target ? node : nullptr;
}

std::optional<Linear> linear_of(const ProgramView& view, ValueId id) {
  const Node* node = maker_with(view, id, "tessera.linear");
  if (node == nullptr) return std::nullopt;
  return Linear{value_of(*node, "x"), value_of(*node, "weight"), value_of(*node, "bias")};
}

std::optional<Norm> norm_of(const ProgramView& view, ValueId id) {
  const Node* rms = maker_with(view, id, "tessera.rms_norm");
  const Node* node = rms != nullptr ? rms : maker_with(view, id, "tessera.layer_norm");
  if (node == nullptr || flag_of(*node, "less_one")) return std::nullopt;
  const Norm norm{value_of(*node, "x"), value_of(*node, "weight"), value_of(*node, "bias"),
                  number_of(*node, "epsilon").value_or(0)};
  const bool fits = norm.weight != kNoValue && (rms != nullptr) == (norm.bias == kNoValue);
  return fits ? std::optional(norm) : std::nullopt;
}

// Behind views, transpositions and parts, which the proof looks at.
ValueId behind_views(const ProgramView& view, ValueId id) {
  for (int i = 0; i < 8; ++i) {
    const Node* node = view.maker(id);
    if (node == nullptr) return id;
    const std::string& name = node->target;
    const bool views = name == "aten.view.default" || name == "aten.reshape.default" ||
                       name == "aten._unsafe_view.default" || name == "aten.transpose.int" ||
                       name == "aten.unflatten.int" || name == "aten.slice.Tensor" ||
                       name == "aten.chunk.default" || name == "aten.split.Tensor" ||
                       name == "aten.split_with_sizes.default";
    if (!views) return id;
    id = value_of(*node, "self");
    if (id == kNoValue) return id;
  }
  return id;
}

// Sums of two, either way round.
template <typename Visit>
bool any_order(const Node& node, const Visit& visit) {
  const ValueId a = value_of(node, "self"), b = value_of(node, "other");
  return a != kNoValue && b != kNoValue && (visit(a, b) || visit(b, a));
}

class LayerMatch {
 public:
  explicit LayerMatch(const ProgramView& view) : view_(view) {
    arguments_.fill(Item());
    for (const size_t place : {kArgHalved, kArgGated, kArgExactGelu})
      arguments_[place] = Item(false);
    arguments_[kArgNumber] = Item(int64_t{0});
  }

  std::optional<Candidate> match(const Node& sum) {
    const auto is_layer = [&](ValueId attended, ValueId branch) {
      return match_feed_forward(attended, branch) && match_attention_branch(attended);
    };
    if (!any_order(sum, is_layer)) return std::nullopt;
    Candidate candidate{.output = result_of(sum)};
    for (size_t i = 0; i < kArgCount; ++i)
      candidate.arguments.push_back({kArgNames[i], arguments_[i]});
    add_small(candidate);
    candidate.proof.standard_normal = candidate.proof.fused = true;
    candidate.proof.padded = arguments_[kArgPadded] == Item(true);
    candidate.proof.documents =
        arguments_[kArgCos] == Item() || arguments_[kArgByPlace] == Item(true);
    return candidate;
  }

 private:
  void set(size_t place, ValueId id) { arguments_[place] = item_or_none(id); }
  ValueId given(size_t place) const {
    const auto* value = std::get_if<ValueRef>(&arguments_[place]);
    return value == nullptr ? kNoValue : value->id;
  }

  bool set_product(const std::vector<Linear>& products, std::initializer_list<size_t> weights,
                   std::initializer_list<size_t> biases) {
    for (const Linear& product : products) {
      if (product.x != products[0].x ||
          (product.bias == kNoValue) != (products[0].bias == kNoValue))
        return false;
    }
    for (const size_t place : weights) set(place, kNoValue);
    for (const size_t place : biases) set(place, kNoValue);
    bool one = true;
    for (const Linear& product : products) one = one && product.weight == products[0].weight;
    const size_t count = one ? 1 : products.size();
    for (size_t i = 0; i < count; ++i) {
      set(weights.begin()[i], products[i].weight);
      set(biases.begin()[i], products[i].bias);
    }
    return true;
  }

  bool match_feed_forward(ValueId attended, ValueId branch) {
    const auto down = linear_of(view_, branch);
    if (!down) return false;
    const auto products = feed_forward_products(down->x);
    if (products.empty() || !set_product(products, {kArgGate, kArgUp}, {kArgGateBias, kArgUpBias}))
      return false;
    const auto norm = norm_of(view_, products[0].x);
    if (!norm || norm->x != attended) return false;
    set(kArgDown, down->weight), set(kArgDownBias, down->bias);
    set(kArgAttentionNorm, norm->weight), set(kArgAttentionNormBias, norm->bias);
    arguments_[kArgEpsilon] = Item(norm->epsilon);
    inner_ = extent_of(view_.value(down->x), -1);
    return inner_ > 0;
  }

  std::vector<Linear> feed_forward_products(ValueId active) {
    const Node* node = view_.maker(active);
    if (node == nullptr) return {};
    const bool gated = node->target == "tessera.swiglu", exact = node->target == "tessera.gelu";
    if (!gated && !exact && node->target != "tessera.gelu_tanh") return {};
    arguments_[kArgGated] = Item(gated), arguments_[kArgExactGelu] = Item(exact);
    std::vector<Linear> products;
    const std::vector<const char*> names =
        gated ? std::vector<const char*>{"gate", "up"} : std::vector<const char*>{"x"};
    for (const char* name : names) {
      const auto product = linear_of(view_, behind_views(view_, value_of(*node, name)));
      if (!product) return {};
      products.push_back(*product);
    }
    return products;
  }

  bool match_attention_branch(ValueId attended) {
    const Node* sum = maker_with(view_, attended, "aten.add.Tensor");
    if (sum == nullptr || number_of(*sum, "alpha").value_or(1) != 1) return false;
    return any_order(*sum, [&](ValueId hidden, ValueId branch) {
      const auto dense = linear_of(view_, branch);
      const Node* attention = dense ? maker_with(view_, dense->x, "tessera.attention") : nullptr;
      if (attention == nullptr || !match_attention(hidden, *attention)) return false;
      set(kArgHidden, hidden), set(kArgDense, dense->weight), set(kArgDenseBias, dense->bias);
      return true;
    });
  }

  bool match_attention(ValueId hidden, const Node& attention) {
    const bool plain = number_of(attention, "softcap") == 0.0 &&
                       value_of(attention, "sinks") == kNoValue &&
                       *argument_of(attention, "slopes") == Argument(Item());
    if (!plain) return false;
    const auto by_token = static_cast<int64_t>(number_of(attention, "by_token").value_or(0));
    std::vector<Linear> products;
    std::array<int64_t, 3> heads{};
    constexpr std::array<const char*, 3> kOperands = {"query", "key", "value"};
    for (size_t i = 0; i < 3; ++i) {
      ValueId id = value_of(attention, kOperands[i]);
      heads[i] = extent_of(view_.value(id), (by_token >> i) & 1 ? 1 + 1 : 1);
      if (!pass_head_norm(i, id)) return false;
      const auto product = linear_of(view_, behind_views(view_, id));
      if (!product) return false;
      products.push_back(*product);
    }
    const auto norm = norm_of(view_, products[0].x);
    if (!norm || norm->x != hidden || Item(norm->epsilon) != arguments_[kArgEpsilon]) return false;
    if (heads[0] <= 0 || heads[1] <= 0 || heads[1] != heads[2] || flag_of(attention, "paired")) {
      return false;
    }
    set(kArgInputNorm, norm->weight), set(kArgInputNormBias, norm->bias);
    arguments_[kArgHeads] = Item(heads[0]), arguments_[kArgKeyHeads] = Item(heads[1]);
    for (const auto& [place, name] :
         {std::pair(kArgCos, "cos"), std::pair(kArgSin, "sin"), std::pair(kArgScale, "scale"),
          std::pair(kArgWindow, "window"), std::pair(kArgPadded, "padded"),
          std::pair(kArgByPlace, "by_place")}) {
      arguments_[place] = std::get<Item>(*argument_of(attention, name));
    }
    return set_product(products, {kArgQuery, kArgKey, kArgValue},
                       {kArgQueryBias, kArgKeyBias, kArgValueBias});
  }

  // Queries and keys may be normalised by head.
  bool pass_head_norm(size_t operand, ValueId& id) {
    if (operand == 2) return true;
    const size_t place = operand == 0 ? kArgQueryNorm : kArgKeyNorm;
    set(place, kNoValue);
    const Node* swapped = maker_with(view_, id, "aten.transpose.int");
    const auto norm = norm_of(view_, swapped == nullptr ? id : value_of(*swapped, "self"));
    if (!norm) return operand == 0 || given(kArgQueryNorm) == kNoValue;
    if (norm->bias != kNoValue || Item(norm->epsilon) != arguments_[kArgEpsilon]) return false;
    set(place, norm->weight);
    id = norm->x;
    return operand == 0 || given(kArgQueryNorm) != kNoValue;
  }

  // Widths that no head depends on: a proof at small ones shows as much.
  void add_small(Candidate& candidate) const {
    constexpr int64_t kWidth = 9, kInner = 11;
    const bool joint = given(kArgUp) == kNoValue && arguments_[kArgGated] == Item(true);
    const int64_t small_inner = joint ? 2 * kInner : kInner;
    const auto shrink = [&](size_t place, int64_t dim, int64_t to) {
      if (given(place) != kNoValue) candidate.small.push_back({given(place), dim, to});
    };
    for (const size_t place :
         {kArgInputNorm, kArgInputNormBias, kArgAttentionNorm, kArgAttentionNormBias, kArgDense,
          kArgDenseBias, kArgDown, kArgDownBias}) {
      shrink(place, 0, kWidth);
    }
    shrink(kArgHidden, 2, kWidth);
    for (const size_t place : {kArgQuery, kArgKey, kArgValue, kArgGate, kArgUp})
      shrink(place, 1, kWidth);
    for (const size_t place : {kArgGate, kArgUp, kArgGateBias, kArgUpBias})
      shrink(place, 0, small_inner);
    shrink(kArgDown, 1, kInner);
  }

  const ProgramView& view_;
  std::array<Item, kArgCount> arguments_;
  int64_t inner_ = 0;
};

}  // namespace

std::optional<Candidate> match_layer(const ProgramView& view, const Node& sum) {
  return LayerMatch(view).match(sum);
}

}  // namespace tessera::program
