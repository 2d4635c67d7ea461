// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Muon (Jordan et al. 2024) as torch.optim.Muon: momentum whose whole matrix is made orthogonal by
/// five Newton-Schulz iterations in bf16.
///   strategy.attach(model, context, make_muon({}, make_adamw({})));
#include <array>

#include "tessera/optim/matrix_optimizer.h"

namespace tessera {

/// What the learning rate is multiplied by for a matrix of [rows, columns].
enum class MuonLrAdjustment {
  kOriginal,       ///< sqrt(max(1, rows / columns))
  kMatchRmsAdamW,  ///< 0.2 sqrt(max(rows, columns)): takes AdamW's rates (Liu et al. 2025)
};

/// Options by torch.optim.Muon's names.
struct MuonConfig {
  double weight_decay = 0.1;  ///< decoupled, of parameters that decay
  double momentum = 0.95;     ///< of the gradient's average, in [0, 1)
  bool nesterov = true;       ///< whether the update looks one step ahead
  /// Coefficients of the iteration's polynomial.
  std::array<double, 3> ns_coefficients = {3.4445, -4.7750, 2.0315};
  double epsilon = 1e-7;  ///< least norm to divide by
  int ns_steps = 5;       ///< number of iterations
  MuonLrAdjustment adjust_lr =
      MuonLrAdjustment::kOriginal;  ///< how the rate follows the matrix's shape
  /// Its learning rate over that of optimizer_step(), which everything else has: 20 for a Muon of
  /// 0.02 beside an AdamW of 0.001.
  double relative_rate = 1;
};

/// Throws Error(kInvalidArgument) for numbers that torch refuses.
std::shared_ptr<const MatrixOptimizer> muon(const MuonConfig& config);
/// Muon of the hidden matrices, or of those that `chooses` says; `others` of everything else.
OptimizerFactory make_muon(const MuonConfig& config, OptimizerFactory others,
                           MatrixPredicate chooses = hidden_matrices());

/// The iteration: x [rows, columns], any floating dtype -> bf16 of that shape, whose singular
/// values lie about 1.
at::Tensor newton_schulz(const at::Tensor& x, const MuonConfig& config);

}  // namespace tessera
