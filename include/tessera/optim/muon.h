// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Muon (Jordan et al. 2024), like torch.optim.Muon: momentum of a whole matrix, orthogonalised by
/// five Newton-Schulz iterations in bf16.
///   strategy.attach(model, context, make_muon({}, make_adamw({})));
#include <array>

#include "tessera/optim/matrix_optimizer.h"

namespace tessera {

/// Factor of the learning rate for a matrix [rows, columns].
enum class MuonLrAdjustment {
  kOriginal,       ///< sqrt(max(1, rows / columns))
  kMatchRmsAdamW,  ///< 0.2 sqrt(max(rows, columns)): for AdamW's rates (Liu et al. 2025)
};

/// Options with torch.optim.Muon's names.
struct MuonConfig {
  double weight_decay = 0.1;  ///< decoupled, for parameters that decay
  double momentum = 0.95;     ///< decay of the gradient's average, in [0, 1)
  bool nesterov = true;       ///< Nesterov momentum
  /// Coefficients of the iteration's polynomial.
  std::array<double, 3> ns_coefficients = {3.4445, -4.7750, 2.0315};
  double epsilon = 1e-7;  ///< smallest norm in the division
  int ns_steps = 5;       ///< number of iterations
  MuonLrAdjustment adjust_lr =
      MuonLrAdjustment::kOriginal;  ///< factor of the rate by the matrix's shape
  /// Its learning rate relative to that of optimizer_step(), which all other parameters use: 20 for
  /// Muon at 0.02 beside AdamW at 0.001.
  double relative_rate = 1;
};

/// Makes Muon. Throws Error(kInvalidArgument) for values that torch rejects.
std::shared_ptr<const MatrixOptimizer> muon(const MuonConfig& config);
/// Muon for the hidden matrices, or those that `chooses` selects; `others` for everything else.
OptimizerFactory make_muon(const MuonConfig& config, OptimizerFactory others,
                           MatrixPredicate chooses = hidden_matrices());

/// Newton-Schulz iteration: x [rows, columns], any floating dtype -> bf16 of that shape with
/// singular values near 1.
at::Tensor newton_schulz(const at::Tensor& x, const MuonConfig& config);

}  // namespace tessera
