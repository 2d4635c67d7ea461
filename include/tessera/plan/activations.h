#pragma once
// What forward keeps for backward, about: the one part of a rank's memory that shapes of parameters
// do not say.
#include <cstdint>

#include "tessera/plan/layout_cost.h"

namespace tessera {

// A decoder and one micro-batch of it, as far as activations go.
struct ActivationShape {
  int64_t layers = 0, hidden = 0, heads = 0;
  int64_t rows = 0, length = 0;  // of a micro-batch
  int64_t vocabulary = 0;        // of the logits; 0: a head without them
};

// 17 elements of the hidden size per token and layer (Korthikanti et al. 2022, equation 2 without
// the attention scores), fp32 attention probabilities (stored on the CPU), one chunk of logits and
// its gradient. Recomputation keeps one element and one layer's 17. A pipeline's first stage holds
// the micro-batches in flight of its share of the layers; with a shared vocabulary more of them,
// and a part of the logits.
double activation_bytes(const LayoutPlan& plan, const ActivationShape& shape);

}  // namespace tessera
