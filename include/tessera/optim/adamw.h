// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// AdamW with decoupled weight decay (Loshchilov, Hutter 2019). The update rule is torch's, the
/// defaults are not: no decay, and where there is one only matrices have it
/// (docs/library/own-optimizer.md).
#include "tessera/optim/optimizer.h"

namespace tessera {

/// What both moments are kept in; the update is in fp32 always.
enum class MomentsDtype {
  kFloat32,   ///< 8 bytes an element
  kBFloat16,  ///< 4; rounded to nearest even
  /// 2 and 1/32: bitsandbytes' block-wise 8 bits (Dettmers et al. 2022). Blocks of 256 elements
  /// count from each parameter's begin, each with its largest magnitude in fp32 and codes of the
  /// dynamic map. Unlike there, a second moment that is not zero is never kept as zero. Strategies
  /// cut parameters between blocks, so no layout changes a number; a tensor axis that cuts through
  /// blocks is refused. Embeddings and heads keep fp32 (Parameter::fp32_state).
  kInt8,
};

/// Options by torch.optim.AdamW's names.
struct AdamWConfig {
  double beta1 = 0.9;         ///< of the first moment, in [0, 1)
  double beta2 = 0.999;       ///< of the second moment, in [0, 1)
  double epsilon = 1e-8;      ///< added to the root
  double weight_decay = 0.0;  ///< applied to ranges whose weight_decay flag is set
  /// false: torch's Adam, which adds weight_decay * parameter to the gradient.
  bool adam_w_mode = true;
  MomentsDtype moments = MomentsDtype::kFloat32;  ///< what both moments are kept in
  /// kInt8: parameters of fewer elements have moments in fp32, as bitsandbytes' do. A model in
  /// which none is left with 8 bits is refused.
  int64_t min_8bit_size = 4096;
};

/// Makes AdamW, which keeps "exp_avg" and "exp_avg_sq". Throws Error(kInvalidArgument) for numbers
/// that torch refuses.
OptimizerFactory make_adamw(const AdamWConfig& config);

}  // namespace tessera
