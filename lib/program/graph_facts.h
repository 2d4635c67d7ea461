// SPDX-License-Identifier: MIT
#pragma once
// Facts of a graph's values: shared memory, writes, and dependence on parameters.
#include <cstddef>
#include <vector>

#include "lib/program/graph.h"

namespace tessera::program {

constexpr size_t kNoNode = ~size_t{0};

// Whether the node gives its input in a dtype or on a device; the input itself if it has both.
bool is_cast(const Node& node);

class GraphFacts {
 public:
  // Throws Error(kDataLoss), which names file, node and operator, for a program that writes to a
  // parameter.
  explicit GraphFacts(const Graph& graph);

  // The node that makes the value; kNoNode: it is an input.
  size_t maker(ValueId value) const { return makers_[static_cast<size_t>(value)]; }
  // Values of one group may share memory.
  ValueId group(ValueId value) const { return groups_[static_cast<size_t>(value)]; }
  // The nodes that write to the memory of the value's group, in order.
  const std::vector<size_t>& writers(ValueId value) const {
    return writers_[static_cast<size_t>(group(value))];
  }
  bool is_written(ValueId value) const { return !writers(value).empty(); }
  // No parameter, no changing buffer, no random number and nothing hidden enters: the node gives
  // the same in every block that has the user's inputs.
  bool is_free(size_t node) const { return free_[node]; }
  // The nodes that must run before this one: those that make what it reads, or write to it before.
  const std::vector<size_t>& needs(size_t node) const { return needs_[node]; }

 private:
  void find_aliases(const Graph& graph);
  void check_parameters(const Graph& graph) const;
  void find_needs(const Graph& graph);
  void find_free(const Graph& graph);
  ValueId root(ValueId value);
  void join(ValueId a, ValueId b);

  std::vector<size_t> makers_;
  std::vector<ValueId> groups_;
  std::vector<std::vector<size_t>> writers_;  // by the group
  std::vector<std::vector<size_t>> needs_;
  std::vector<char> free_;
};

}  // namespace tessera::program
