// SPDX-License-Identifier: MIT
#include "lib/program/linear_layers.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "lib/program/rewrites/program_view.h"

namespace tessera::program {
namespace {

// Operands of a product.
struct ProductForm {
  const char *x, *weight, *bias;
  bool transposes;  // the operator itself transposes the weight
};

const ProductForm* form_of(const Node& node) {
  static const std::map<std::string, ProductForm> forms = {
      {"aten.linear.default", {"input", "weight", "bias", true}},
      {"tessera.linear", {"x", "weight", "bias", true}},
      {"aten.addmm.default", {"mat1", "mat2", "self", false}},
      {"aten.mm.default", {"self", "mat2", "", false}},
      {"aten.matmul.default", {"self", "other", "", false}}};
  const auto found = forms.find(node.target);
  return found == forms.end() ? nullptr : &found->second;
}

std::optional<int64_t> whole_of(const Node& node, const char* name) {
  const auto number = number_of(node, name);
  return number ? std::optional(static_cast<int64_t>(*number)) : std::nullopt;
}

// The matrix that the node transposes; kNoValue: it does something else.
ValueId transposed_by(const Node& node) {
  if (node.target == "aten.t.default" || node.target == "aten.numpy_T.default") {
    return value_of(node, "self");
  }
  if (node.target != "aten.transpose.int") return kNoValue;
  const auto first = whole_of(node, "dim0"), second = whole_of(node, "dim1");
  const bool both = first && second && (*first + 2) % 2 != (*second + 2) % 2;
  return both ? value_of(node, "self") : kNoValue;
}

// Factors other than 1 change what an adapter stands beside.
bool is_plain(const Node& node) {
  return number_of(node, "alpha").value_or(1) == 1 && number_of(node, "beta").value_or(1) == 1;
}

bool is_linear_class(const std::string& name) {
  return name.ends_with("Linear") || name == "Conv1D";
}

class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph) {
    for (const GraphInput& input : graph.inputs) {
      if (input.kind == InputKind::kParameter) parameters_.insert(input.value);
    }
    for (const Node& node : graph.nodes) {
      const ValueId matrix = transposed_by(node);
      if (parameters_.contains(matrix) && has_two(matrix)) {
        transposed_[result_of(node)] = matrix;
      } else {
        note_other_reads(node);
      }
    }
    for (const ValueId id : graph.outputs) other_reads_.insert(id);
  }

  std::vector<LinearLayer> find() const {
    std::vector<LinearLayer> layers;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (const auto layer = layer_at(i)) layers.push_back(*layer);
    }
    return layers;
  }

 private:
  const Value& value(ValueId id) const { return graph_.values[static_cast<size_t>(id)]; }
  bool has_two(ValueId id) const { return value(id).sizes.size() == 2; }

  // The weight's operand of a product is none of them.
  void note_other_reads(const Node& node) {
    const ProductForm* form = form_of(node);
    const ValueId weight = form == nullptr ? kNoValue : value_of(node, form->weight);
    int times = 0;
    visit_reads(node, [&](ValueId id) {
      if (id != weight || ++times > 1) other_reads_.insert(id);
    });
  }

  std::optional<LinearLayer> layer_at(size_t place) const {
    const Node& node = graph_.nodes[place];
    const ProductForm* form = form_of(node);
    if (form == nullptr || !is_plain(node)) return std::nullopt;
    LinearLayer layer{.node = place,
                      .x = value_of(node, form->x),
                      .weight = value_of(node, form->weight),
                      .bias = *form->bias == 0 ? kNoValue : value_of(node, form->bias),
                      .y = result_of(node),
                      .in_out = !form->transposes,
                      .by_module = is_linear_class(node.module_class)};
    if (layer.x == kNoValue || layer.weight == kNoValue || layer.y == kNoValue) return std::nullopt;
    if (const auto turned = transposed_.find(layer.weight); turned != transposed_.end()) {
      if (other_reads_.contains(layer.weight)) return std::nullopt;
      layer.weight = turned->second;
      layer.in_out = !layer.in_out;
    }
    if (!parameters_.contains(layer.weight) || !has_two(layer.weight)) return std::nullopt;
    if (other_reads_.contains(layer.weight)) return std::nullopt;
    const int64_t rows = extent_of(value(layer.weight), 0),
                  columns = extent_of(value(layer.weight), 1);
    if (rows <= 0 || columns <= 0) return std::nullopt;
    layer.out = layer.in_out ? columns : rows;
    layer.in = layer.in_out ? rows : columns;
    return layer;
  }

  const Graph& graph_;
  std::set<ValueId> parameters_, other_reads_;
  std::map<ValueId, ValueId> transposed_;  // the transpose of a parameter -> the parameter
};

}  // namespace

std::vector<LinearLayer> linear_layers(const Graph& graph) { return Finder(graph).find(); }

std::vector<size_t> last_linear_layers(const Graph& graph, const std::vector<LinearLayer>& layers,
                                       ValueId output) {
  std::set<ValueId> open = {output};
  std::vector<size_t> last;
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    bool makes = false;
    visit_writes(node, [&](ValueId id) { makes = makes || open.contains(id); });
    if (!makes) continue;
    const auto layer = std::find_if(layers.begin(), layers.end(),
                                    [&](const LinearLayer& one) { return one.node == i; });
    if (layer != layers.end()) {
      last.push_back(static_cast<size_t>(layer - layers.begin()));
    } else {
      visit_reads(node, [&](ValueId id) { open.insert(id); });
    }
  }
  return last;
}

}  // namespace tessera::program
