// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// AdamW with decoupled weight decay (Loshchilov, Hutter 2019). The update rule is torch's; the
/// defaults differ: no decay, and if set only on matrices (docs/library/own-optimizer.md).
#include "tessera/optim/optimizer.h"

namespace tessera {

/// Storage of both moments; updates always run in fp32.
enum class MomentsDtype {
  kFloat32,  ///< 8 bytes per element
  /// 4 bytes. The first moment is rounded to nearest even; the second up or down by a dither of the
  /// step, so that small changes add up. Bits depend on the step alone, not on the layout.
  kBFloat16,
  /// 2 and 1/32 bytes: bitsandbytes' block-wise 8 bits (Dettmers et al. 2022). Blocks of 256
  /// elements, from each parameter's start, have their largest magnitude in fp32 and codes of the
  /// dynamic map. Unlike bitsandbytes, a non-zero second moment is never stored as zero. Strategies
  /// shard parameters between blocks, so results are equal under every layout; a tensor axis that
  /// cuts through blocks is an error. Embeddings and heads keep fp32 (Parameter::fp32_state).
  kInt8,
};

/// Options with torch.optim.AdamW's names.
struct AdamWConfig {
  double beta1 = 0.9;         ///< decay of the first moment, in [0, 1)
  double beta2 = 0.999;       ///< decay of the second moment, in [0, 1)
  double epsilon = 1e-8;      ///< added to the root
  double weight_decay = 0.0;  ///< applied to ranges whose weight_decay flag is set
  /// false: torch's Adam, which adds weight_decay * parameter to the gradient.
  bool adam_w_mode = true;
  MomentsDtype moments = MomentsDtype::kFloat32;  ///< storage of both moments
  /// kInt8: smaller parameters (in elements) have fp32 moments, as in bitsandbytes. A model without
  /// any 8-bit moments is an error.
  int64_t min_8bit_size = 4096;
};

/// Makes AdamW, which keeps "exp_avg" and "exp_avg_sq". Throws Error(kInvalidArgument) for values
/// that torch rejects.
OptimizerFactory make_adamw(const AdamWConfig& config);

}  // namespace tessera
