// SPDX-License-Identifier: MIT
#pragma once
// Proof of a rewrite: region and replacement run side by side on drawn inputs.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lib/program/constants.h"
#include "lib/program/graph.h"
#include "lib/program/user_inputs.h"

namespace tessera::program {

// Largest relative difference of a proof: of outputs and of every gradient, in fp64, by the largest
// element.
constexpr double kProofTolerance = 1e-9;

// Free extents by their expression.
using Extents = std::map<std::string, int64_t>;

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

  // A value for the input: user's integers are 0 or 1, "attention_mask" ones, "position_ids"
  // places; constants and buffers have their own values; other tensors are normal times scale.
  // Throws Error(kInvalidArgument) for an extent that is none of the user's inputs.
  at::Tensor draw(const GraphInput& input, const Value& value, const Extents& extents, double scale,
                  at::Generator& generator) const;

 private:
  int64_t within(const std::string& expression, int64_t wanted) const;

  const Constants& constants_;
  at::ScalarType dtype_;
  bool training_;
  std::vector<std::string> symbols_;  // in the order of the inputs
  std::map<std::string, InputEntry::Range> ranges_;
  std::vector<Extents> sizes_;
};

struct Proof {
  bool holds = false;
  double difference = 0;  // the largest
  std::string reason;     // why it does not hold
};

struct ProofOptions {
  bool any_extent = false;   // see Candidate
  int64_t sequence = 0;      // one more number of tokens to try; 0: none
  bool whole_layer = false;  // see Candidate
};

// Runs both in fp64 on the CPU under autograd: every size, small and large values. Gradients of
// drawn tensors are added to zeros, as blocks do. Both read inputs of the same names.
Proof prove(const Graph& region, const Graph& replacement, const ProofInputs& inputs,
            const ProofOptions& options = {});

}  // namespace tessera::program
