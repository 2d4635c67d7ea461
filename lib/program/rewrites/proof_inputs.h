// SPDX-License-Identifier: MIT
#pragma once
// Values that regions of a program are run with.
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lib/program/constants.h"
#include "lib/program/graph.h"
#include "lib/program/user_inputs.h"

namespace tessera::program {

// Most elements of a result while a program is tried at load: it may come from a stranger.
constexpr int64_t kMostProven = int64_t{1} << 28;

// Free extents by their expression.
using Extents = std::map<std::string, int64_t>;

struct Draw {
  Extents extents = {};
  double scale = 1;        // tensors that are drawn are normal times this
  at::Tensor tokens = {};  // bool [batch, sequence], for "attention_mask"; undefined: ones
  int64_t integers = 2;    // those inside the graph lie below it
};

// bool [batch, sequence]: padding in front of the first row and behind the second.
at::Tensor padded_tokens(int64_t batch, int64_t sequence);

// Inputs that a program's regions are run with.
class ProofInputs {
 public:
  ProofInputs(const Graph& graph, std::vector<InputEntry> entries, const Constants& constants,
              at::ScalarType dtype, bool training);

  // Several rows, one token, and another shape, inside the ranges that the manifest states.
  const std::vector<Extents>& sizes() const { return sizes_; }
  // The extents for these of the first user input; the others are those of sizes()[0].
  Extents with(int64_t batch, int64_t sequence) const;
  // The extents of the first user input there; 1 where it has fewer.
  std::pair<int64_t, int64_t> first_two(const Extents& extents) const;
  // Whether rows may have so many tokens.
  bool reaches(int64_t sequence) const;

  // The dimension that counts a row's tokens; -1: none does.
  int64_t token_dim(const Value& value) const;

  // A value for the input: user's integers are 0 or 1, "position_ids" places; constants and buffers
  // have their own values. Throws Error(kInvalidArgument) for an extent that is none of the user's
  // inputs.
  at::Tensor draw(const GraphInput& input, const Value& value, const Draw& how,
                  at::Generator& generator) const;
  // Of all inputs of a graph without hidden ones, the same numbers each time.
  std::vector<at::Tensor> draw_all(const Graph& graph, const Draw& how) const;

 private:
  int64_t within(const std::string& expression, int64_t wanted) const;

  const Constants& constants_;
  at::ScalarType dtype_;
  bool training_;
  std::vector<std::string> symbols_;  // in the order of the inputs
  std::map<std::string, InputEntry::Range> ranges_;
  std::vector<Extents> sizes_;
};

}  // namespace tessera::program
