// SPDX-License-Identifier: MIT
#include "lib/program/token_proof.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "lib/program/call.h"
#include "lib/program/rewrites/program_view.h"
#include "lib/program/token_operators.h"
#include "tessera/core/error.h"

namespace tessera::program {
namespace {

// The dimension of the sequence: 1, or 2 behind that of the heads, where the batch's is 0. 0: of
// batch and sequence joined.
using TokenDim = std::optional<int64_t>;
constexpr int64_t kJoined = 0;

class TokenProof {
 public:
  explicit TokenProof(const Graph& piece) : piece_(piece) {}

  std::string why_not() {
    for (const GraphInput& input : piece_.inputs) add_input(input);
    for (const Node& node : piece_.nodes) {
      if (!reads_tokens(node)) continue;
      const TokenDim dim =
          draws(piece_, node) || node.region.autocast ? std::nullopt : token_dim(node);
      if (!dim) return concat(node.target, " (", path_of(node), ")");
      visit_writes(node, [&](ValueId id) { tokens_[id] = *dim; });
    }
    // The next piece takes them as [batch, sequence, ...].
    for (const ValueId id : piece_.outputs) {
      if (dim_of(id) != 1) return concat("its result ", value(id).name);
    }
    return "";
  }

 private:
  const Value& value(ValueId id) const { return piece_.values[static_cast<size_t>(id)]; }
  int64_t rank(ValueId id) const { return static_cast<int64_t>(value(id).sizes.size()); }
  static std::string path_of(const Node& node) {
    return node.modules.empty() ? node.name : node.modules.back();
  }

  void add_input(const GraphInput& input) {
    if (input.kind == InputKind::kHidden && rank(input.value) >= 2) tokens_[input.value] = 1;
    if (input.kind == InputKind::kUser && rank(input.value) == 2) ids_.insert(input.value);
  }

  // Sizes of the ids are no tokens, and the ids themselves enter an embedding alone.
  bool reads_tokens(const Node& node) const {
    bool reads = false;
    visit_reads(node, [&](ValueId id) { reads = reads || tokens_.contains(id); });
    return reads || (is_embedding(node) && reads_ids(node));
  }
  static bool is_embedding(const Node& node) {
    return node.target == "aten.embedding.default" || node.target == "tessera.embedding";
  }
  bool reads_ids(const Node& node) const {
    const ValueId ids = value_of(node, node.target == "tessera.embedding" ? "ids" : "indices");
    return ids_.contains(ids);
  }

  TokenDim dim_of(ValueId id) const {
    const auto known = tokens_.find(id);
    return known == tokens_.end() ? std::nullopt : TokenDim(known->second);
  }

  // The result's, or none where the operator is not known to keep tokens apart.
  TokenDim token_dim(const Node& node) {
    const std::string& name = node.target;
    if (is_embedding(node)) return reads_ids(node) ? TokenDim(1) : std::nullopt;
    if (name == "tessera.attention") return attention_dim(node);
    if (name == "tessera.experts") return experts_dim(node);
    if (broadcasting_operators().contains(name)) return dim_of_operands(node);
    const ValueId input =
        node.arguments.empty() ? kNoValue : value_of(node, node.arguments[0].name);
    if (name == "aten.cat.default") return dim_of_parts(node);
    const TokenDim known = input == kNoValue ? std::nullopt : dim_of(input);
    if (!known || !others_are_bound(node, input)) return std::nullopt;
    const int64_t dim = *known;
    const auto where = [&](bool holds) { return holds ? known : std::nullopt; };
    if (elementwise_operators().contains(name) || name == "aten.alias.default") return dim;
    if (last_dimension_operators().contains(name)) return where(dim < rank(input) - 1);
    if (name == "aten.layer_norm.default" || name == "aten.rms_norm.default") {
      const auto* shape = std::get_if<std::vector<Item>>(argument_of(node, "normalized_shape"));
      const bool behind =
          shape != nullptr && dim + static_cast<int64_t>(shape->size()) < rank(input);
      return where(behind);
    }
    if (reducing_operators().contains(name)) return where(reduces_behind(node, input, dim));
    if (name == "aten.transpose.int") return transposed(node, input, dim);
    if (is_view(name)) return kept_by_view(node, input, dim);
    if (takes_part(name)) return where(dim_behind(node, input, dim));
    return std::nullopt;
  }

  static bool is_view(const std::string& name) {
    return name == "aten.view.default" || name == "aten.reshape.default" ||
           name == "aten._unsafe_view.default" || name == "aten.unflatten.int" ||
           name == "aten.flatten.using_ints";
  }
  static bool takes_part(const std::string& name) {
    return name == "aten.slice.Tensor" || name == "aten.chunk.default" ||
           name == "aten.split.Tensor" || name == "aten.split_with_sizes.default" ||
           name == "aten.select.int" || name == "aten.unsqueeze.default";
  }

  // No other argument has tokens, and none reaches their dimensions.
  bool others_are_bound(const Node& node, ValueId input) const {
    bool bound = true;
    visit_reads(node, [&](ValueId id) { bound = bound && (id == input || !dim_of(id)); });
    return bound;
  }

  // Tables without tokens may only reach behind the sequence, where they are not of one row alone.
  TokenDim dim_of_operands(const Node& node) const {
    TokenDim dim;
    int64_t most = 0;
    bool fit = true;
    visit_reads(node, [&](ValueId id) {
      if (!dim_of(id)) return;
      fit = fit && (!dim || (dim == dim_of(id) && most == rank(id)));
      dim = dim_of(id);
      most = rank(id);
    });
    visit_reads(node, [&](ValueId id) {
      if (dim_of(id) || value(id).kind != ValueKind::kTensor) return;
      for (int64_t i = 0; i < rank(id) && i + most - rank(id) <= *dim; ++i) {
        fit = fit && extent_of(value(id), i) == 1;
      }
      fit = fit && rank(id) <= most;
    });
    return fit ? dim : std::nullopt;
  }

  TokenDim dim_of_parts(const Node& node) const {
    TokenDim dim;
    bool fit = true;
    ValueId any = kNoValue;
    visit_reads(node, [&](ValueId id) {
      fit = fit && dim_of(id) && (!dim || dim == dim_of(id));
      dim = dim_of(id);
      any = id;
    });
    return fit && dim && dim_behind(node, any, *dim) ? dim : std::nullopt;
  }

  // Whether "dim" lies behind the sequence's.
  bool dim_behind(const Node& node, ValueId input, int64_t dim) const {
    const auto given = number_of(node, "dim");
    if (!given) return false;
    const auto place = static_cast<int64_t>(*given);
    const int64_t extra = node.target == "aten.unsqueeze.default" ? 1 : 0;
    return (place < 0 ? place + rank(input) + extra : place) > dim;
  }

  bool reduces_behind(const Node& node, ValueId input, int64_t dim) const {
    const Argument* given = argument_of(node, "dim");
    if (given == nullptr) {  // topk's is the last
      return node.target == "aten.topk.default" && dim < rank(input) - 1;
    }
    const auto behind = [&](const Item& item) {
      const auto* place = std::get_if<int64_t>(&item);
      return place != nullptr && (*place < 0 ? *place + rank(input) : *place) > dim;
    };
    if (const auto* one = std::get_if<Item>(given)) return behind(*one);
    const auto* list = std::get_if<std::vector<Item>>(given);
    return list != nullptr && !list->empty() && std::all_of(list->begin(), list->end(), behind);
  }

  TokenDim transposed(const Node& node, ValueId input, int64_t dim) const {
    const auto place = [&](const char* name) {
      const auto given = static_cast<int64_t>(number_of(node, name).value_or(0));
      return given < 0 ? given + rank(input) : given;
    };
    const int64_t first = std::min(place("dim0"), place("dim1")),
                  second = std::max(place("dim0"), place("dim1"));
    if (first > dim) return dim;
    return first == 1 && second == 2 ? TokenDim(3 - dim) : std::nullopt;
  }

  // Dimensions up to the sequence's stay as they are, so only those behind it are joined or split;
  // or batch and sequence are joined, or split as they were.
  TokenDim kept_by_view(const Node& node, ValueId input, int64_t dim) {
    const std::vector<Extent>& before = value(input).sizes;
    const std::vector<Extent>& after = value(node.outputs[0].values[0]).sizes;
    const auto up_to = before.begin() + dim + 1;
    if (std::mismatch(before.begin(), up_to, after.begin(), after.end()).first == up_to) return dim;
    if (dim == 1) {
      const bool joins =
          !after.empty() && std::equal(up_to, before.end(), after.begin() + 1, after.end());
      const std::vector<Extent> extents(before.begin(), up_to);
      if (joins && joined_.empty()) joined_ = extents;
      return joins && joined_ == extents ? TokenDim(kJoined) : std::nullopt;
    }
    const bool splits = dim == kJoined && after.size() >= joined_.size() &&
                        std::equal(joined_.begin(), joined_.end(), after.begin());
    return splits ? TokenDim(1) : std::nullopt;
  }

  // Each token has experts and weights of its own.
  TokenDim experts_dim(const Node& node) const {
    for (const char* name : {"x", "experts", "weights"}) {
      if (dim_of(value_of(node, name)) != kJoined) return std::nullopt;
    }
    const bool bound = !dim_of(value_of(node, "gate_up")) && !dim_of(value_of(node, "down"));
    return bound ? TokenDim(kJoined) : std::nullopt;
  }

  TokenDim attention_dim(const Node& node) const {
    const auto* by_places = std::get_if<Item>(argument_of(node, "by_place"));
    const auto* holds = by_places == nullptr ? nullptr : std::get_if<bool>(by_places);
    const auto by_token = static_cast<int64_t>(number_of(node, "by_token").value_or(0));
    if (holds == nullptr || !*holds) return std::nullopt;
    const char* const names[] = {"query", "key", "value"};
    for (int64_t i = 0; i < 3; ++i) {
      const int64_t expected = (by_token >> i) & 1 ? 1 : 2;
      if (dim_of(value_of(node, names[i])) != expected) return std::nullopt;
    }
    return 1;
  }

  const Graph& piece_;
  std::map<ValueId, int64_t> tokens_;  // values with tokens
  std::vector<Extent> joined_;         // extents of batch and sequence
  std::set<ValueId> ids_;              // the user's
};

}  // namespace

std::string why_not_packed(const Graph& piece) { return TokenProof(piece).why_not(); }

}  // namespace tessera::program
