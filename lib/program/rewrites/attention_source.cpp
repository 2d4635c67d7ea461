// SPDX-License-Identifier: MIT
#include "lib/program/rewrites/attention_source.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace tessera::program {
namespace {

constexpr std::string_view kAttention = "aten.scaled_dot_product_attention.default";
constexpr int kMostViews = 6, kMostBetween = 16;

bool is_one_of(const Node& node, std::initializer_list<std::string_view> targets) {
  return std::find(targets.begin(), targets.end(), node.target) != targets.end();
}
bool is_view(const Node& node) {
  return is_one_of(node, {"aten.view.default", "aten.reshape.default", "aten._unsafe_view.default",
                          "aten.flatten.using_ints"});
}
bool is_product(const Node& node) {
  return is_one_of(node, {"aten.matmul.default", "aten.bmm.default"});
}

// The node that makes it, behind casts and other nodes that pass its input on; null: an input.
template <typename Passes>
const Node* maker_behind(const ProgramView& view, ValueId id, int most, const Passes& passes) {
  for (int i = 0; i <= most && id != kNoValue; ++i) {
    const Node* node = view.maker(id);
    if (node == nullptr || !passes(*node)) return node;
    id = value_of(*node, "self");
  }
  return nullptr;
}

// Behind views, a value of four dimensions; kNoValue: there is none.
ValueId with_heads(const ProgramView& view, ValueId id) {
  for (int i = 0; i < kMostViews && id != kNoValue; ++i) {
    if (view.value(id).sizes.size() == 4) return id;
    const Node* node = view.maker(id);
    if (node == nullptr || !is_view(*node)) return kNoValue;
    id = value_of(*node, "self");
  }
  return kNoValue;
}

// What is transposed in its last two dimensions; kNoValue: nothing is.
ValueId before_transposition(const ProgramView& view, ValueId id) {
  const Node* node = id == kNoValue ? nullptr : view.maker(id);
  if (node == nullptr) return kNoValue;
  const ValueId self = value_of(*node, "self");
  const auto rank = static_cast<double>(view.value(id).sizes.size());
  const auto last_two = [&] {
    const auto a = number_of(*node, "dim0"), b = number_of(*node, "dim1");
    if (!a || !b) return false;
    const double first = *a < 0 ? *a + rank : *a, second = *b < 0 ? *b + rank : *b;
    return first != second && std::min(first, second) == rank - 2 &&
           std::max(first, second) == rank - 1;
  };
  return node->target == "aten.transpose.int" && last_two() ? self : kNoValue;
}

// Reads the operators between a softmax and the product of queries and keys, from behind.
class ScoreReader {
 public:
  ScoreReader(const ProgramView& view, AttentionSource& source) : view_(view), source_(source) {}

  // scores: what the softmax takes.
  bool read(ValueId scores) {
    ValueId id = scores;
    for (int i = 0; i < kMostBetween && id != kNoValue; ++i) {
      if (is_whole(id)) source_.bias.output = id;
      const Node* node = view_.maker(id);
      if (node == nullptr) return false;
      if (is_product(*node)) return end(*node, id, "self", is_matmul(*node) ? "other" : "mat2");
      if (node->target == "aten.baddbmm.default") {
        factor_ *= number_of(*node, "alpha").value_or(1);
        return end(*node, id, "batch1", "batch2");
      }
      id = before(*node);
    }
    return false;
  }

 private:
  static bool is_matmul(const Node& node) { return node.target == "aten.matmul.default"; }

  // The first value met on the way that has all that is added to scores.
  bool is_whole(ValueId id) const {
    if (source_.bias.output != kNoValue || view_.value(id).sizes.size() != 4) return false;
    const Node* node = view_.maker(id);
    return node != nullptr && node->target != "aten.cat.default" && !subtracts_largest(*node);
  }

  bool subtracts_largest(const Node& node) const {
    if (node.target != "aten.sub.Tensor") return false;
    const ValueId other = value_of(node, "other");
    const Node* largest = other == kNoValue ? nullptr : view_.maker(other);
    return largest != nullptr && is_one_of(*largest, {"aten.max.dim", "aten.amax.default"});
  }

  // The scores that this operator takes; kNoValue: it is not known.
  ValueId before(const Node& node) {
    const ValueId self = value_of(node, "self");
    if (is_view(node) || is_cast(node) || subtracts_largest(node)) return self;
    if (node.target == "aten.cat.default") return before_sinks(node);
    if (is_one_of(node, {"aten.masked_fill.Scalar", "aten.masked_fill.Tensor"})) return self;
    if (is_one_of(node, {"aten.add.Tensor", "aten.max.other", "aten.maximum.default",
                         "aten.where.self"})) {
      const ValueId other = value_of(node, "other");
      return self == kNoValue || (other != kNoValue && view_.is_free(self)) ? other : self;
    }
    if (is_one_of(node, {"aten.mul.Tensor", "aten.div.Tensor"})) {
      const auto number = number_of(node, "other");
      if (!number || *number == 0) return kNoValue;
      factor_ *= node.target == "aten.mul.Tensor" ? *number : 1 / *number;
      return self;
    }
    if (node.target == "aten.tanh.default" && source_.softcap == 0) {
      source_.softcap = factor_;
      factor_ = 1;
      return self;
    }
    return kNoValue;
  }

  ValueId before_sinks(const Node& node) {
    const Argument* given = argument_of(node, "tensors");
    const auto* tensors = given == nullptr ? nullptr : std::get_if<std::vector<Item>>(given);
    if (tensors == nullptr || tensors->size() != 2 || source_.sinks != kNoValue) return kNoValue;
    const auto* scores = std::get_if<ValueRef>(&(*tensors)[0]);
    const auto* last = std::get_if<ValueRef>(&(*tensors)[1]);
    if (scores == nullptr || last == nullptr) return kNoValue;
    ValueId id = last->id;
    for (int i = 0; i < kMostViews && !view_.is_parameter(id); ++i) {
      const Node* maker = view_.maker(id);
      const bool passes = maker != nullptr &&
                          (is_view(*maker) || is_cast(*maker) ||
                           is_one_of(*maker, {"aten.expand.default", "aten.unsqueeze.default"}));
      if (!passes) return kNoValue;
      id = value_of(*maker, "self");
      if (id == kNoValue) return kNoValue;
    }
    if (!view_.is_parameter(id) || view_.value(id).sizes.size() != 1) return kNoValue;
    source_.sinks = id;
    return scores->id;
  }

  bool end(const Node& product, ValueId result, const char* query, const char* key) {
    const ValueId q = value_of(product, query), k = value_of(product, key);
    source_.query = with_heads(view_, q);
    source_.key = with_heads(view_, before_transposition(view_, k));
    source_.scale = source_.softcap == 0 ? factor_ : factor_ * source_.softcap;
    // Behind a product of four dimensions nothing depends on its extents.
    const bool broadcasts = is_matmul(product) && view_.value(result).sizes.size() == 4;
    source_.bias.broadcasts = broadcasts;
    source_.bias.without = broadcasts ? std::vector{result} : std::vector{q, k};
    return source_.query != kNoValue && source_.key != kNoValue && q != k &&
           source_.bias.output != kNoValue;
  }

  const ProgramView& view_;
  AttentionSource& source_;
  double factor_ = 1;  // of the numbers so far, up to the cap
};

AttentionSource of_operator(const ProgramView& view, const Node& node) {
  AttentionSource source{.query = value_of(node, "query"),
                         .key = value_of(node, "key"),
                         .value = value_of(node, "value")};
  const auto d = static_cast<double>(extent_of(view.value(source.query), 3));
  source.scale = number_of(node, "scale").value_or(1.0 / std::sqrt(d));
  source.bias.output = value_of(node, "attn_mask");
  if (number_of(node, "dropout_p").value_or(0) > 0) {
    source.reason = "it drops probabilities";
  } else if (source.bias.output == kNoValue && !flag_of(node, "is_causal")) {
    source.reason = "it attends in both directions";
  } else if (source.bias.output != kNoValue && !view.is_free(source.bias.output)) {
    source.reason = "parameters enter its mask";
  }
  return source;
}

// product: of probabilities and values.
std::optional<AttentionSource> of_products(const ProgramView& view, const Node& product) {
  bool drops = false;
  const Node* softmax =
      maker_behind(view, value_of(product, "self"), kMostBetween, [&](const Node& node) {
        return is_view(node) || is_cast(node) || node.target == "aten.slice.Tensor";
      });
  if (softmax != nullptr && softmax->target == "aten.dropout.default") {
    drops = true;
    softmax = maker_behind(view, value_of(*softmax, "input"), kMostBetween,
                           [](const Node& node) { return is_view(node) || is_cast(node); });
  }
  if (softmax == nullptr || softmax->target != "aten.softmax.int") return std::nullopt;
  const bool is_matmul = product.target == "aten.matmul.default";
  AttentionSource source{.value =
                             with_heads(view, value_of(product, is_matmul ? "other" : "mat2"))};
  if (drops) {
    source.reason = "it drops probabilities";
  } else if (!ScoreReader(view, source).read(value_of(*softmax, "self")) ||
             source.value == kNoValue) {
    source.reason = "its form is not known (aten.softmax.int)";
  }
  return source;
}

}  // namespace

std::optional<AttentionSource> attention_before(const ProgramView& view, const Node& node) {
  const ValueId result = result_of(node);
  if (!is_view(node) || result == kNoValue || view.value(result).sizes.size() != 3) {
    return std::nullopt;
  }
  const Node* before = maker_behind(view, value_of(node, "self"), kMostViews, [](const Node& on) {
    return is_view(on) || is_one_of(on, {"aten.transpose.int", "aten.permute.default",
                                         "aten.contiguous.default", "aten.clone.default"});
  });
  if (before == nullptr) return std::nullopt;
  if (before->target == kAttention) return of_operator(view, *before);
  return is_product(*before) ? of_products(view, *before) : std::nullopt;
}

}  // namespace tessera::program
