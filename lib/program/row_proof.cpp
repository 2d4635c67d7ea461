// SPDX-License-Identifier: MIT
#include "lib/program/row_proof.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>

#include "lib/program/call.h"
#include "lib/program/token_operators.h"

namespace tessera::program {
namespace {

constexpr int64_t kPlaces = 2;  // the leading dimensions, batch and sequence

class RowProof {
 public:
  explicit RowProof(const Graph& piece) : piece_(piece) {}

  bool holds() {
    if (!has_one_hidden() || piece_.outputs.size() != 1) return false;
    for (const Node& node : piece_.nodes) {
      if (!keeps_rows(node)) return false;
    }
    const ValueId output = piece_.outputs[0];
    return rows_.contains(output) && value(output).sizes.size() == 3;
  }

 private:
  const Value& value(ValueId id) const { return piece_.values[static_cast<size_t>(id)]; }
  int64_t rank(ValueId id) const {
    return id == kNoValue ? 0 : static_cast<int64_t>(value(id).sizes.size());
  }

  bool has_one_hidden() {
    for (const GraphInput& input : piece_.inputs) {
      if (input.kind == InputKind::kUser || input.kind == InputKind::kBuffer) return false;
      if (input.kind != InputKind::kHidden) continue;
      if (!rows_.empty() || rank(input.value) != 3) return false;
      rows_.insert(input.value);
      hidden_ = input.value;
    }
    return !rows_.empty();
  }

  bool has_places(ValueId id) const {
    const auto& sizes = value(id).sizes;
    const auto& hidden = value(hidden_).sizes;
    return rank(id) > kPlaces && sizes[0] == hidden[0] && sizes[1] == hidden[1];
  }

  // The value that is given for the parameter; kNoValue: a number, or none.
  static ValueId given(const Node& node, const std::string& name) {
    ValueId id = kNoValue;
    for (const NamedArgument& argument : node.arguments) {
      if (argument.name == name) visit_values(argument.value, [&](ValueId read) { id = read; });
    }
    return id;
  }
  static const Argument* argument(const Node& node, const std::string& name) {
    for (const NamedArgument& argument : node.arguments) {
      if (argument.name == name) return &argument.value;
    }
    return nullptr;
  }
  static int64_t whole(const Node& node, const std::string& name, int64_t fallback) {
    const Argument* given = argument(node, name);
    const auto* item = given == nullptr ? nullptr : std::get_if<Item>(given);
    if (item == nullptr || std::holds_alternative<std::monostate>(*item)) return fallback;
    const auto* number = std::get_if<int64_t>(item);
    return number == nullptr ? std::numeric_limits<int64_t>::min() : *number;
  }

  bool is_last_dim(int64_t dim, ValueId id) const {
    return dim < 0 ? dim >= kPlaces - rank(id) : dim >= kPlaces;
  }

  bool keeps_rows(const Node& node) {
    bool reads = false;
    visit_reads(node, [&](ValueId id) { reads = reads || rows_.contains(id); });
    if (!reads) return true;
    if (node.region.autocast || draws(piece_, node) || !is_known(node)) return false;
    bool places = true;
    visit_writes(node, [&](ValueId id) {
      places = places && has_places(id);
      rows_.insert(id);
    });
    return places;
  }

  bool is_known(const Node& node) const {
    const std::string& name = node.target;
    const bool first =
        !node.arguments.empty() && rows_.contains(given(node, node.arguments[0].name));
    if (elementwise_operators().contains(name)) return first && others_are_small(node, 0);
    if (name == "aten.type_as.default") return first;  // of the other only the dtype counts
    if (broadcasting_operators().contains(name)) return operands_fit(node);
    if (reducing_operators().contains(name)) return first && dims_are_last(node);
    if (last_dimension_operators().contains(name)) return first && others_are_bound(node);
    if (name == "aten.matmul.default") {
      return first && others_are_bound(node) && rank(given(node, "other")) == 2;
    }
    if (name == "aten.layer_norm.default" || name == "aten.rms_norm.default") {
      const auto* shape = std::get_if<std::vector<Item>>(argument(node, "normalized_shape"));
      return first && others_are_bound(node) && shape != nullptr &&
             static_cast<int64_t>(shape->size()) <= rank(given(node, "input")) - kPlaces;
    }
    if (name == "aten.slice.Tensor") return first && slices_all(node);
    return false;
  }

  // No other argument has rows.
  bool others_are_bound(const Node& node) const {
    for (size_t i = 1; i < node.arguments.size(); ++i) {
      bool has = false;
      visit_values(node.arguments[i].value, [&](ValueId id) { has = has || rows_.contains(id); });
      if (has) return false;
    }
    return true;
  }
  bool others_are_small(const Node& node, int64_t most) const {
    if (!others_are_bound(node)) return false;
    for (size_t i = 1; i < node.arguments.size(); ++i) {
      bool large = false;
      visit_values(node.arguments[i].value, [&](ValueId id) { large = large || rank(id) > most; });
      if (large) return false;
    }
    return true;
  }

  // Tensors without rows must not reach the leading dimensions.
  bool operands_fit(const Node& node) const {
    int64_t most = 0;
    const auto has_rows = [&](ValueId id) { return rows_.contains(id); };
    visit_reads(node, [&](ValueId id) { most = has_rows(id) ? std::max(most, rank(id)) : most; });
    bool fit = true;
    visit_reads(node, [&](ValueId id) {
      fit = fit && (has_rows(id) ? rank(id) == most : rank(id) <= most - kPlaces);
    });
    return fit;
  }

  bool dims_are_last(const Node& node) const {
    if (!others_are_bound(node)) return false;
    const Argument* dims = argument(node, "dim");
    if (dims == nullptr) return false;
    const ValueId input = given(node, node.arguments[0].name);
    const auto is_last = [&](const Item& item) {
      const auto* dim = std::get_if<int64_t>(&item);
      return dim != nullptr && is_last_dim(*dim, input);
    };
    if (const auto* one = std::get_if<Item>(dims)) return is_last(*one);
    const auto* list = std::get_if<std::vector<Item>>(dims);
    return list != nullptr && !list->empty() && std::all_of(list->begin(), list->end(), is_last);
  }

  bool slices_all(const Node& node) const {
    const ValueId input = given(node, "self");
    if (!others_are_bound(node)) return false;
    if (is_last_dim(whole(node, "dim", 0), input)) return true;
    return whole(node, "start", 0) == 0 && whole(node, "step", 1) == 1 &&
           whole(node, "end", std::numeric_limits<int64_t>::max()) ==
               std::numeric_limits<int64_t>::max();
  }

  const Graph& piece_;
  ValueId hidden_ = kNoValue;
  std::set<ValueId> rows_;  // values with a row for each position
};

}  // namespace

bool acts_on_rows(const Graph& piece) { return RowProof(piece).holds(); }

}  // namespace tessera::program
