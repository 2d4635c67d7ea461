// SPDX-License-Identifier: MIT
#include "lib/program/tensor/cut_shapes.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "lib/program/rewrites/program_view.h"
#include "lib/program/tensor/view_state.h"
#include "lib/program/token_operators.h"
#include "tessera/core/error.h"

namespace tessera::program {
namespace {

using Sizes = std::vector<Extent>;

bool is_view(const std::string& target) {
  static const std::set<std::string> names = {"aten.view.default", "aten.reshape.default",
                                              "aten._unsafe_view.default",
                                              "aten.flatten.using_ints", "aten.unflatten.int"};
  return names.contains(target);
}

bool broadcasts(const std::string& target) {
  static const std::set<std::string> more = {
      "aten.pow.Tensor_Tensor", "aten.masked_fill.Scalar", "aten.masked_fill.Tensor",
      "aten.where.self",        "aten.type_as.default",    "aten.alias.default",
      "aten.to.dtype_layout",   "aten.rsub.Scalar",        "aten.square.default"};
  return elementwise_operators().contains(target) || broadcasting_operators().contains(target) ||
         more.contains(target);
}

std::optional<int64_t> whole_number(const Node& node, const char* name) {
  const auto number = number_of(node, name);
  return number ? std::optional(static_cast<int64_t>(*number)) : std::nullopt;
}

std::vector<Item>* list_of(Node& node, const std::string& name) {
  for (NamedArgument& argument : node.arguments) {
    if (argument.name == name) return std::get_if<std::vector<Item>>(&argument.value);
  }
  return nullptr;
}

Item* item_of(Node& node, const std::string& name) {
  for (NamedArgument& argument : node.arguments) {
    if (argument.name == name) return std::get_if<Item>(&argument.value);
  }
  return nullptr;
}

}  // namespace

struct CutShapes::Work {
  const CutShapes& shapes;
  const Node& given;
  ShapedNode result{.node = given, .states = {}, .whole = {}, .reason = ""};

  const Value& value(ValueId id) const { return shapes.graph_.values[static_cast<size_t>(id)]; }
  int64_t rank_of(ValueId id) const { return static_cast<int64_t>(value(id).sizes.size()); }
  const CutState* state(ValueId id) const {
    const auto found = shapes.states_.find(id);
    return found == shapes.states_.end() ? nullptr : &found->second;
  }
  void refuse(const std::string& reason) {
    if (result.reason.empty()) result.reason = reason;
  }
  void set_all(const CutState& made) {
    visit_writes(given, [&](ValueId id) { result.states[id] = made; });
  }
  std::vector<ValueId> tensors() const {
    std::vector<ValueId> read;
    visit_reads(given, [&](ValueId id) {
      const bool known = std::find(read.begin(), read.end(), id) != read.end();
      if (!known && value(id).kind == ValueKind::kTensor) read.push_back(id);
    });
    return read;
  }
  // The argument's value, which must be shared; null: it is not.
  const CutState* shared(const char* name) {
    const ValueId id = value_of(given, name);
    const CutState* found = id == kNoValue ? nullptr : state(id);
    if (found == nullptr) refuse(concat("its operand ", name, " is not the shared one"));
    return found;
  }
  static int64_t from_front(int64_t dim, int64_t rank) { return dim < 0 ? dim + rank : dim; }

  // An operand that each rank has whole, beside a shared one. place: of the shared dimension in it.
  void take_whole(ValueId id, int64_t place, const CutState& made, const Extent& extent) {
    const Sizes& sizes = value(id).sizes;
    if (place < 0 || place >= static_cast<int64_t>(sizes.size())) {
      result.whole.push_back({.value = id});
      return;
    }
    const Extent& own = sizes[static_cast<size_t>(place)];
    if (own.expression.empty() && own.number == 1) {
      result.whole.push_back({.value = id});
    } else if (own == extent) {
      result.whole.push_back({.value = id, .dim = place, .parts = made.parts});
    } else {
      refuse(concat("an operand does not fit the shared dimension: ", value(id).name));
    }
  }

  // Operands whose last dimensions meet; `inner` of the last ones are no part of it.
  void broadcast(const std::vector<ValueId>& operands, int64_t inner = 0) {
    std::optional<CutState> made;
    Extent extent;
    int64_t rank = 0;
    for (const ValueId id : operands) rank = std::max(rank, rank_of(id));
    for (const ValueId id : operands) {
      const CutState* own = state(id);
      if (own == nullptr) continue;
      const CutState here{own->dim + rank - rank_of(id), own->parts};
      if (made && (made->dim != here.dim || made->parts != here.parts)) {
        return refuse("its operands are shared in other dimensions");
      }
      made = here;
      extent = value(id).sizes[static_cast<size_t>(own->dim)];
    }
    if (!made) return refuse("no operand is shared");
    if (made->dim >= rank - inner) return refuse("it works along the shared dimension");
    for (const ValueId id : operands) {
      if (state(id) == nullptr) {
        take_whole(id, made->dim - (rank - rank_of(id)), *made, extent);
      }
    }
    set_all(*made);
  }

  void divide(Item& item, int64_t by) {
    auto* number = std::get_if<int64_t>(&item);
    if (number == nullptr || *number < 0) return;
    if (*number % by != 0) {
      return refuse(concat(*number, " does not divide by ", by));
    }
    *number /= by;
  }

  void view() {
    const ValueId x = value_of(given, "self");
    const CutState* own = shared("self");
    if (own == nullptr) return;
    const Sizes& to = value(result_of(given)).sizes;
    const auto made = viewed_state(value(x).sizes, to, *own);
    if (!made) return refuse("its extents do not keep the shared dimension apart");
    for (const char* name : {"size", "shape", "sizes"}) {
      std::vector<Item>* sizes = list_of(result.node, name);
      if (sizes == nullptr) continue;
      const int64_t first = given.target == "aten.unflatten.int"
                                ? from_front(whole_number(given, "dim").value_or(0), rank_of(x))
                                : 0;
      const int64_t place = made->dim - first;
      if (place >= 0 && place < static_cast<int64_t>(sizes->size())) {
        divide((*sizes)[static_cast<size_t>(place)], shapes.ranks_);
      }
    }
    const Extent& extent = to[static_cast<size_t>(made->dim)];
    if (extent.expression.empty() && extent.number % (made->parts * shapes.ranks_) != 0) {
      return refuse(concat(extent.number, " does not divide by ", shapes.ranks_, " ranks"));
    }
    set_all(*made);
  }

  void expand() {
    const CutState* own = shared("self");
    std::vector<Item>* sizes = list_of(result.node, "size");
    if (own == nullptr || sizes == nullptr) return refuse("its extents are not known");
    const auto added = static_cast<int64_t>(sizes->size()) - rank_of(value_of(given, "self"));
    const CutState made{own->dim + added, own->parts};
    divide((*sizes)[static_cast<size_t>(made.dim)], shapes.ranks_);
    set_all(made);
  }

  void transpose() {
    const CutState* own = shared("self");
    if (own == nullptr) return;
    const int64_t rank = rank_of(value_of(given, "self"));
    const auto first = from_front(whole_number(given, "dim0").value_or(0), rank),
               second = from_front(whole_number(given, "dim1").value_or(0), rank);
    const int64_t dim = own->dim == first ? second : own->dim == second ? first : own->dim;
    set_all({dim, own->parts});
  }

  void permute() {
    const CutState* own = shared("self");
    const std::vector<Item>* dims = list_of(result.node, "dims");
    if (own == nullptr || dims == nullptr) return;
    const auto rank = static_cast<int64_t>(dims->size());
    for (size_t i = 0; i < dims->size(); ++i) {
      const auto* dim = std::get_if<int64_t>(&(*dims)[i]);
      if (dim != nullptr && from_front(*dim, rank) == own->dim) {
        return set_all({static_cast<int64_t>(i), own->parts});
      }
    }
    refuse("its dimensions are not known");
  }

  void unsqueeze() {
    const CutState* own = shared("self");
    if (own == nullptr) return;
    const int64_t dim =
        from_front(whole_number(given, "dim").value_or(0), rank_of(value_of(given, "self")) + 1);
    set_all({own->dim + (dim <= own->dim ? 1 : 0), own->parts});
  }

  // Along "dim", which goes.
  void remove_dimension() {
    const CutState* own = shared("self");
    if (own == nullptr) return;
    const int64_t dim =
        from_front(whole_number(given, "dim").value_or(0), rank_of(value_of(given, "self")));
    if (dim == own->dim) return refuse("it takes the shared dimension apart");
    set_all({own->dim - (dim < own->dim ? 1 : 0), own->parts});
  }

  // Along dimensions that stay or go.
  void reduce() {
    const CutState* own = shared("self");
    if (own == nullptr) return;
    const int64_t rank = rank_of(value_of(given, "self"));
    int64_t before = 0;
    const auto note = [&](int64_t dim) {
      dim = from_front(dim, rank);
      if (dim == own->dim) refuse("it works along the shared dimension");
      if (dim < own->dim) ++before;
    };
    if (const std::vector<Item>* dims = list_of(result.node, "dim")) {
      for (const Item& dim : *dims) note(std::get<int64_t>(dim));
    } else if (const auto dim = whole_number(given, "dim")) {
      note(*dim);
    } else {
      return refuse("it works along the shared dimension");
    }
    const bool keeps = rank_of(result_of(given)) == rank;
    set_all({own->dim - (keeps ? 0 : before), own->parts});
  }

  void concatenate() {
    const std::vector<ValueId> operands = tensors();
    const int64_t rank = rank_of(operands.front());
    const int64_t dim = from_front(whole_number(given, "dim").value_or(0), rank);
    for (const ValueId id : operands) {
      const CutState* own = state(id);
      if (own != nullptr && own->dim == dim) return refuse("it joins along the shared dimension");
    }
    broadcast(operands);
  }

  // Pieces of a dimension: of one that is not shared, or whole parts of the shared one.
  void cut_up() {
    const CutState* own = shared("self");
    if (own == nullptr) return;
    const ValueId x = value_of(given, "self");
    const int64_t dim = from_front(whole_number(given, "dim").value_or(0), rank_of(x));
    if (dim != own->dim) return set_all(*own);
    const Extent& extent = value(x).sizes[static_cast<size_t>(dim)];
    if (!extent.expression.empty()) return refuse("it takes the shared dimension apart");
    const int64_t part = extent.number / own->parts;
    visit_writes(given, [&](ValueId id) {
      const int64_t length = extent_of(value(id), dim);
      if (length <= 0 || length % part != 0) {
        return refuse("it takes the shared dimension apart within a part; rules can say parts");
      }
      result.states[id] = {dim, static_cast<int>(length / part)};
    });
    divide_pieces(part);
  }

  void divide_pieces(int64_t part) {
    if (std::vector<Item>* sizes = list_of(result.node, "split_sizes")) {
      for (Item& size : *sizes) divide(size, shapes.ranks_);
    }
    if (Item* size = item_of(result.node, "split_size")) divide(*size, shapes.ranks_);
    if (given.target != "aten.slice.Tensor") return;
    for (const char* name : {"start", "end"}) {
      Item* bound = item_of(result.node, name);
      auto* number = bound == nullptr ? nullptr : std::get_if<int64_t>(bound);
      if (number == nullptr || *number > (int64_t{1} << 40)) continue;
      if (*number % part != 0) return refuse("it takes the shared dimension apart within a part");
      *number /= shapes.ranks_;
    }
  }

  // Heads of queries, keys and values; numbers of heads may differ.
  void attend() {
    const CutState* query = shared("query");
    if (query == nullptr) return;
    const bool own_operator = given.target == "tessera.attention";
    const int64_t by_token = own_operator ? whole_number(given, "by_token").value_or(0) : 0;
    int bit = 0;
    for (const char* name : {"query", "key", "value"}) {
      const int64_t heads = (by_token >> bit++) & 1 ? 2 : 1;
      const ValueId id = value_of(given, name);
      const CutState* own = state(id);
      if (own == nullptr) {
        const Extent extent = value(id).sizes[static_cast<size_t>(heads)];
        take_whole(id, heads, {heads, 1}, extent);
        if (extent.number % shapes.ranks_ != 0) refuse("its heads do not divide by the ranks");
      } else if (own->dim != heads || own->parts != 1) {
        return refuse(concat("its ", name, " is not shared by heads"));
      }
    }
    const ValueId mask = own_operator ? kNoValue : value_of(given, "attn_mask");
    if (mask != kNoValue && state(mask) == nullptr) {
      const ValueId q = value_of(given, "query");
      take_whole(mask, rank_of(mask) - 3, {1, 1}, value(q).sizes[1]);
    }
    if (own_operator) {
      for (const char* name : {"cos", "sin"}) {
        const ValueId table = value_of(given, name);
        if (table != kNoValue) result.whole.push_back({.value = table});
      }
      const ValueId sinks = value_of(given, "sinks");
      if (sinks != kNoValue) result.whole.push_back({.value = sinks, .dim = 0});
    }
    set_all({own_operator ? int64_t{2} : int64_t{1}, 1});
  }

  // Along the last dimensions, with weights.
  void normalise() {
    const char* name = given.target.starts_with("tessera.") ? "x" : "input";
    const CutState* own = shared(name);
    if (own == nullptr) return;
    const ValueId x = value_of(given, name);
    const std::vector<Item>* shape = list_of(result.node, "normalized_shape");
    const int64_t inner = shape == nullptr ? 1 : static_cast<int64_t>(shape->size());
    if (own->dim >= rank_of(x) - inner) {
      return refuse("it is a norm along the dimension that the ranks share");
    }
    for (const ValueId id : tensors()) {
      if (id != x) result.whole.push_back({.value = id});
    }
    set_all(*own);
  }

  void repeat() {
    const CutState* own = shared("self");
    if (own == nullptr) return;
    const int64_t dim =
        from_front(whole_number(given, "dim").value_or(0), rank_of(value_of(given, "self")));
    if (dim == own->dim && own->parts > 1) return refuse("it repeats the shared dimension");
    set_all(*own);
  }

  void run() {
    const std::string& target = given.target;
    if (is_view(target)) return view();
    if (target == "aten.expand.default") return expand();
    if (target == "aten.transpose.int") return transpose();
    if (target == "aten.permute.default") return permute();
    if (target == "aten.unsqueeze.default") return unsqueeze();
    if (target == "aten.squeeze.dim" || target == "aten.select.int" ||
        target == "aten.unbind.int") {
      return remove_dimension();
    }
    if (target == "aten.cat.default") return concatenate();
    if (target == "aten.chunk.default" || target == "aten.split.Tensor" ||
        target == "aten.split_with_sizes.default" || target == "aten.slice.Tensor") {
      return cut_up();
    }
    if (target == "aten.scaled_dot_product_attention.default" || target == "tessera.attention") {
      return attend();
    }
    if (target == "tessera.rms_norm" || target == "tessera.layer_norm" ||
        target == "aten.layer_norm.default" || target == "aten.rms_norm.default") {
      return normalise();
    }
    if (target == "aten.repeat_interleave.self_int") return repeat();
    if (target == "aten.matmul.default") return broadcast(tensors(), /*inner=*/2);
    if (reducing_operators().contains(target)) return reduce();
    if (target.starts_with("aten.sym_size") || target == "aten.sym_size.int") {
      return refuse("it reads an extent that the ranks share");
    }
    if (broadcasts(target)) return broadcast(tensors());
    refuse("the tensor axis does not know this operator");
  }
};

ShapedNode CutShapes::shape(const Node& node) const {
  Work work{.shapes = *this, .given = node};
  work.run();
  return std::move(work.result);
}

}  // namespace tessera::program
