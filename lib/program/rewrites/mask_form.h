// SPDX-License-Identifier: MIT
#pragma once
// Masks, biases and tables of attention, told by their values.
#include <cstdint>
#include <string>
#include <vector>

#include "lib/program/graph.h"
#include "lib/program/graph_facts.h"
#include "lib/program/rewrites/proof.h"

namespace tessera::program {

// Largest window that a mask is tried beyond, in tokens.
constexpr int64_t kLargestWindow = 8192;

struct MaskForm {
  int64_t window = 0;          // most keys that a query sees, up to its own; 0: all
  bool padded = false;         // follows the user's attention_mask
  std::vector<double> slopes;  // by head: what is added grows so much from key to key; empty: 0
  std::string reason;          // why it is none that tessera's attention has; empty: it is one
};

// What attention adds to its scores: all of `output` but what comes from these values.
struct ScoreBias {
  ValueId output = kNoValue;
  std::vector<ValueId> without = {};
  bool broadcasts = false;  // the only value without: every operator behind it broadcasts
};

// Computes the bias, which no parameter enters, at several sizes and beyond every bound that its
// operators state, and compares it with a causal mask, with a window, with padding at both ends and
// with ALiBi. Only rows of queries that are tokens count.
MaskForm form_of_bias(const Graph& graph, const GraphFacts& facts, const ScoreBias& bias,
                      const ProofInputs& inputs);

// See ProgramView::is_by_place(). Compares the tables of several rows and numbers of tokens.
bool is_table_by_place(const Graph& graph, const GraphFacts& facts, ValueId table,
                       const ProofInputs& inputs);

}  // namespace tessera::program
