// SPDX-License-Identifier: MIT
#pragma once
// Proof of a rewrite: region and replacement run side by side on drawn inputs.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "lib/program/graph.h"
#include "lib/program/rewrites/proof_inputs.h"

namespace tessera::program {

// Largest relative difference of a proof: of outputs and of every gradient, in fp64, by the largest
// element.
constexpr double kProofTolerance = 1e-9;

struct Proof {
  bool holds = false;
  double difference = 0;  // the largest
  std::string reason;     // why it does not hold
};

struct ProofOptions {
  // No operator of the region depends on a constant extent: small ones prove as much.
  bool any_extent = false;
  int64_t sequence = 0;          // one more number of tokens to try, beyond a window; 0: none
  bool standard_normal = false;  // values of no other scale: no clamp is there
  bool fused = false;            // the replacement also with BlockContext::fused_layers
  // One number of rows and tokens: the replacement has the region's operators.
  bool one_size = false;
  double large = 30;       // times standard normal values, too, which goes past clamps
  bool padded = false;     // rows with padding, too; queries that are tokens count
  int64_t integers = 2;    // integers inside the graph are drawn below it
  bool documents = false;  // two documents in a row, too, as each of them alone
};

// Runs both in fp64 on the CPU under autograd: every size, small and large values. Gradients of
// drawn tensors are added to zeros, as blocks do. Both read inputs of the same names.
Proof prove(const Graph& region, const Graph& replacement, const ProofInputs& inputs,
            const ProofOptions& options = {});

}  // namespace tessera::program
