// SPDX-License-Identifier: MIT
#include "lib/program/program_cut.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "tessera/core/error.h"

namespace tessera::program {
namespace {

// The layer that a node lies in, "model.layers.3"; "": none.
std::string layer_of(const Node& node, const std::vector<std::string>& layers) {
  for (const std::string& module : node.modules) {
    for (const std::string& layer : layers) {
      const size_t number = layer.size() + 1;
      if (module.size() <= number || !module.starts_with(layer) || module[layer.size()] != '.')
        continue;
      const bool digits = std::all_of(module.begin() + static_cast<ptrdiff_t>(number), module.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
      if (digits) return module;
    }
  }
  return "";
}

// Joins segments whose nodes take turns, so that numbers only grow along the nodes.
void join_turns(Segments& segments) {
  std::vector<size_t> joined(segments.names.size());  // the first segment of each one's run
  for (size_t s = 0; s < joined.size(); ++s) joined[s] = s;
  size_t latest = 0;
  for (const size_t segment : segments.of_node) {
    if (segment == kNoNode) continue;
    for (size_t s = segment; s < latest; ++s)
      joined[s + 1] = std::min(joined[s + 1], joined[segment]);
    latest = std::max(latest, segment);
  }
  std::vector<std::string> names;
  std::vector<size_t> numbers(joined.size());
  for (size_t s = 0; s < joined.size(); ++s) {
    if (joined[s] == s) {
      names.push_back(segments.names[s]);
    } else {
      names.back() += "+" + segments.names[s];
    }
    numbers[s] = names.size() - 1;
  }
  segments.names = std::move(names);
  for (size_t& segment : segments.of_node) {
    if (segment != kNoNode) segment = numbers[segment];
  }
}

// The last node that touches each group of memory.
std::map<ValueId, size_t> last_touches(const Graph& graph, const GraphFacts& facts) {
  std::map<ValueId, size_t> last;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto touch = [&](ValueId id) { last[facts.group(id)] = i; };
    visit_reads(graph.nodes[i], touch);
    visit_writes(graph.nodes[i], touch);
  }
  return last;
}

// Destination of a copy; kNoValue: the node is no copy.
ValueId copied_to(const Node& node) {
  ValueId target = kNoValue;
  for (const NamedArgument& argument : node.arguments) {
    if (node.target != "aten.copy_.default" || argument.name != "self") continue;
    visit_values(argument.value, [&](ValueId id) { target = id; });
  }
  return target;
}

// `buffer = ...` in a module becomes a copy at the program's end, behind all that uses the buffer:
// it belongs where the value is.
bool is_late_copy(const Node& node, size_t place, const GraphFacts& facts,
                  const std::map<ValueId, size_t>& last) {
  const ValueId target = copied_to(node);
  return target != kNoValue && last.at(facts.group(target)) == place;
}

// Each copy goes to the last segment that touches what it reads and writes.
void place_late_copies(const Graph& graph, const GraphFacts& facts, Segments& segments,
                       const std::vector<size_t>& copies) {
  std::map<ValueId, size_t> last;  // segment by group
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const size_t segment = segments.of_node[i];
    if (segment == kNoNode) continue;
    const auto touch = [&](ValueId id) {
      size_t& of_group = last[facts.group(id)];
      of_group = std::max(of_group, segment);
    };
    visit_reads(graph.nodes[i], touch);
    visit_writes(graph.nodes[i], touch);
  }
  for (const size_t copy : copies) {
    size_t segment = 0;
    visit_reads(graph.nodes[copy], [&](ValueId id) {
      const size_t maker = facts.maker(id);
      if (maker != kNoNode && segments.of_node[maker] != kNoNode) {
        segment = std::max(segment, segments.of_node[maker]);
      }
    });
    const auto known = last.find(facts.group(copied_to(graph.nodes[copy])));
    if (known != last.end()) segment = std::max(segment, known->second);
    segments.of_node[copy] = segment;
  }
}

size_t segment_of(const GraphFacts& facts, const Segments& segments, ValueId value) {
  return facts.maker(value) == kNoNode ? kNoNode : segments.of_node[facts.maker(value)];
}

// Values that are made in a segment up to the boundary and needed behind it, in order.
std::vector<ValueId> crossing(const Graph& graph, const GraphFacts& facts, const Segments& segments,
                              size_t boundary) {
  std::set<ValueId> values;
  const auto look = [&](ValueId id) {
    const size_t segment = segment_of(facts, segments, id);
    if (segment != kNoNode && segment <= boundary) values.insert(id);
  };
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const size_t segment = segments.of_node[i];
    if (segment != kNoNode && segment > boundary) visit_reads(graph.nodes[i], look);
  }
  for (const ValueId id : graph.outputs) look(id);
  std::vector<ValueId> ordered(values.begin(), values.end());
  std::sort(ordered.begin(), ordered.end(), [&](ValueId a, ValueId b) {
    return std::pair(facts.maker(a), a) < std::pair(facts.maker(b), b);
  });
  return ordered;
}

bool is_floating(const Value& value) {
  return value.kind == ValueKind::kTensor && value.dtype && at::isFloatingType(*value.dtype);
}

// The segments that touch each group of memory that is written.
struct Touch {
  std::string name;
  size_t first = kNoNode, last = 0;
  size_t first_write = kNoNode, last_write = 0;
  bool buffer = false;
};

std::map<ValueId, Touch> touches(const Graph& graph, const GraphFacts& facts,
                                 const Segments& segments) {
  std::map<ValueId, Touch> all;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const size_t segment = segments.of_node[i];
    if (segment == kNoNode) continue;
    const auto touch = [&](ValueId id) {
      if (!facts.is_written(id)) return;
      Touch& group = all[facts.group(id)];
      group.name = graph.values[static_cast<size_t>(id)].name;
      group.first = std::min(group.first, segment);
      group.last = std::max(group.last, segment);
    };
    visit_reads(graph.nodes[i], touch);
    visit_writes(graph.nodes[i], touch);
  }
  for (auto& [group, touch] : all) {
    for (const size_t writer : facts.writers(group)) {
      const size_t segment = segments.of_node[writer];
      if (segment == kNoNode) continue;
      touch.first_write = std::min(touch.first_write, segment);
      touch.last_write = std::max(touch.last_write, segment);
    }
  }
  for (const GraphInput& input : graph.inputs) {
    const auto found = all.find(facts.group(input.value));
    if (found != all.end() && input.kind == InputKind::kBuffer) found->second.buffer = true;
  }
  return all;
}

class PieceMaker {
 public:
  PieceMaker(const Graph& graph, const GraphFacts& facts, const Segments& segments, size_t first,
             size_t last)
      : graph_(graph), facts_(facts), segments_(segments), first_(first), last_(last) {}

  Graph make(const std::vector<ValueId>& outputs) {
    find_needed(outputs);
    piece_.file = graph_.file;
    if (first_ > 0) {
      const std::vector<ValueId> hidden = crossing(graph_, facts_, segments_, first_ - 1);
      for (size_t i = 0; i < hidden.size(); ++i) {
        if (read_.contains(hidden[i])) add_input({InputKind::kHidden, concat(i), hidden[i]});
      }
    }
    for (const GraphInput& input : graph_.inputs) {
      if (read_.contains(input.value)) add_input(input);
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (needed_.contains(i)) add_node(graph_.nodes[i]);
    }
    for (const ValueId id : outputs) piece_.outputs.push_back(number_of(id));
    return std::move(piece_);
  }

 private:
  bool is_here(size_t node) const {
    const size_t segment = segments_.of_node[node];
    return segment == kNoNode || (segment >= first_ && segment <= last_);
  }

  void need(ValueId id, std::vector<size_t>& left) {
    read_.insert(id);
    const auto add = [&](size_t node) {
      if (is_here(node) && needed_.insert(node).second) left.push_back(node);
    };
    if (facts_.maker(id) != kNoNode) add(facts_.maker(id));
  }

  // From the outputs, and from what advances buffers, back to the inputs.
  void find_needed(const std::vector<ValueId>& outputs) {
    std::vector<size_t> left;
    for (const ValueId id : outputs) {
      need(id, left);
      for (const size_t writer : facts_.writers(id)) {
        if (is_here(writer) && needed_.insert(writer).second) left.push_back(writer);
      }
    }
    for (const GraphInput& input : graph_.inputs) {
      if (input.kind != InputKind::kBuffer) continue;
      for (const size_t writer : facts_.writers(input.value)) {
        const size_t segment = segments_.of_node[writer];
        if (segment != kNoNode && is_here(writer) && needed_.insert(writer).second) {
          left.push_back(writer);
        }
      }
    }
    while (!left.empty()) {
      const size_t node = left.back();
      left.pop_back();
      visit_reads(graph_.nodes[node], [&](ValueId id) { need(id, left); });
      for (const size_t other : facts_.needs(node)) {
        if (is_here(other) && needed_.insert(other).second) left.push_back(other);
      }
    }
  }

  ValueId number_of(ValueId id) {
    const auto [known, added] =
        numbers_.try_emplace(id, static_cast<ValueId>(piece_.values.size()));
    if (added) piece_.values.push_back(graph_.values[static_cast<size_t>(id)]);
    return known->second;
  }

  void add_input(GraphInput input) {
    input.value = number_of(input.value);
    piece_.inputs.push_back(std::move(input));
  }

  void add_node(const Node& node) {
    Node& added = piece_.nodes.emplace_back(node);
    visit_value_ids(added, [&](ValueId& id) { id = number_of(id); });
  }

  const Graph& graph_;
  const GraphFacts& facts_;
  const Segments& segments_;
  size_t first_, last_;
  Graph piece_;
  std::set<ValueId> read_;
  std::set<size_t> needed_;
  std::map<ValueId, ValueId> numbers_;
};

}  // namespace

Segments find_segments(const Graph& graph, const GraphFacts& facts,
                       const std::vector<std::string>& layers) {
  Segments segments{.names = {"embedding"}};
  std::map<std::string, size_t> numbers;  // of layers, in the order in which they run
  std::vector<std::string> layer(graph.nodes.size());
  std::vector<size_t> late;
  const std::map<ValueId, size_t> last = last_touches(graph, facts);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (facts.is_free(i)) continue;
    layer[i] = layer_of(graph.nodes[i], layers);
    const bool outside = layer[i].empty();
    if (outside && is_late_copy(graph.nodes[i], i, facts, last)) late.push_back(i);
    if (layer[i].empty() || !numbers.try_emplace(layer[i], segments.names.size()).second) continue;
    segments.names.push_back(layer[i]);
  }
  segments.names.push_back("head");
  segments.of_node.assign(graph.nodes.size(), kNoNode);
  size_t following = segments.names.size() - 1;
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    if (facts.is_free(i)) continue;
    if (!layer[i].empty()) following = numbers.at(layer[i]);
    segments.of_node[i] = following;
  }
  // Nodes before the first layer are no part of it.
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (facts.is_free(i)) continue;
    if (!layer[i].empty()) break;
    segments.of_node[i] = numbers.empty() ? segments.names.size() - 1 : 0;
  }
  for (const size_t copy : late) segments.of_node[copy] = kNoNode;
  join_turns(segments);
  place_late_copies(graph, facts, segments, late);
  return segments;
}

std::vector<std::string> obstacles(const Graph& graph, const GraphFacts& facts,
                                   const Segments& segments) {
  const size_t count = segments.names.size();
  std::vector<std::string> reasons(count - 1);
  std::vector<char> has_nodes(count, 0);
  for (const size_t segment : segments.of_node) {
    if (segment != kNoNode) has_nodes[segment] = 1;
  }
  const std::map<ValueId, Touch> written = touches(graph, facts, segments);
  for (size_t b = 0; b + 1 < count; ++b) {
    std::string& reason = reasons[b];
    const std::vector<ValueId> values = crossing(graph, facts, segments, b);
    if (values.empty() || !has_nodes[b] || (b + 2 == count && !has_nodes[b + 1])) {
      reason = "nothing crosses";
    }
    std::map<ValueId, int> of_group;
    for (const ValueId id : values) {
      ++of_group[facts.group(id)];
      const Value& value = graph.values[static_cast<size_t>(id)];
      if (!is_floating(value)) reason = concat("\"", value.name, "\" crosses and is not floating");
    }
    for (const auto& [group, touch] : written) {
      if (touch.first > b || touch.last <= b) continue;
      const bool before = touch.last_write <= b;
      const bool behind = touch.first_write > b && of_group[group] <= 1;
      if (touch.buffer || !(before || behind)) {
        reason = concat("\"", touch.name, "\" is written on one side and used on the other");
      }
    }
  }
  return reasons;
}

std::vector<ValueId> outputs_of(const Graph& graph, const GraphFacts& facts,
                                const Segments& segments, size_t last) {
  if (last + 1 == segments.names.size()) return graph.outputs;
  return crossing(graph, facts, segments, last);
}

Graph piece_of(const Graph& graph, const GraphFacts& facts, const Segments& segments, size_t first,
               size_t last, const std::vector<ValueId>& outputs) {
  return PieceMaker(graph, facts, segments, first, last).make(outputs);
}

}  // namespace tessera::program
