// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include "lib/program/rewrites/norm_call.h"
#include "lib/program/rewrites/rewrite.h"
#include "tessera/ops/functional.h"

namespace tessera::program {
namespace {

// x, weight, bias, epsilon.
at::Tensor run_layer_norm(const std::vector<c10::IValue>& arguments, const RunContext&) {
  return ops::layer_norm(arguments[0].toTensor(), arguments[1].toTensor(), arguments[2].toTensor(),
                         arguments[3].toDouble());
}

std::optional<Proposal> propose_layer_norm(const ProgramView& view, size_t anchor) {
  const std::optional<NormCall> call = norm_call(view, anchor);
  if (!call) return std::nullopt;
  Proposal proposal;
  if (!call->fits || call->vectors.size() != 2) {
    proposal.reason = "expected a tensor, a weight and a bias of its last extent";
    return proposal;
  }
  const auto add = [&](ValueId weight, ValueId bias, double epsilon) {
    proposal.candidates.push_back({call->output,
                                   {{"x", Item(ValueRef{call->x})},
                                    {"weight", Item(ValueRef{weight})},
                                    {"bias", Item(ValueRef{bias})},
                                    {"epsilon", Item(epsilon)}}});
  };
  for (const double epsilon : call->epsilons) {
    add(call->vectors[0], call->vectors[1], epsilon);
    add(call->vectors[1], call->vectors[0], epsilon);
  }
  return proposal;
}

}  // namespace

Rewrite layer_norm_rewrite() {
  return {"layer norm", {"tessera.layer_norm", run_layer_norm}, propose_layer_norm};
}

}  // namespace tessera::program
