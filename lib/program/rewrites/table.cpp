// SPDX-License-Identifier: MIT
#include "lib/program/rewrites/joint_linear.h"
#include "lib/program/rewrites/rewrite.h"
#include "lib/program/tensor/operators.h"

namespace tessera::program {

const std::vector<Rewrite>& rewrites() {
  static const std::vector<Rewrite> table = {
      rms_norm_rewrite(),  layer_norm_rewrite(), gated_silu_rewrite(),
      gelu_tanh_rewrite(), gelu_rewrite(),       linear_rewrite(),
      attention_rewrite(), embedding_rewrite(),  experts_rewrite()};
  return table;
}

const std::vector<Rewrite>& layer_rewrites() {
  static const std::vector<Rewrite> table = {decoder_layer_rewrite()};
  return table;
}

const OwnOperator* find_own(std::string_view target) {
  for (const auto* table : {&rewrites(), &layer_rewrites()}) {
    for (const Rewrite& rewrite : *table) {
      if (rewrite.own.target == target) return &rewrite.own;
    }
  }
  if (joint_linear().target == target) return &joint_linear();
  for (const OwnOperator& own : tensor_operators()) {
    if (own.target == target) return &own;
  }
  return nullptr;
}

}  // namespace tessera::program
