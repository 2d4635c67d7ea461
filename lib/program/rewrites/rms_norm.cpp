// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include "lib/program/rewrites/norm_call.h"
#include "lib/program/rewrites/rewrite.h"
#include "tessera/ops/functional.h"

namespace tessera::program {
namespace {

// x, weight or None, epsilon, whether the weight is stored less 1 (Gemma).
at::Tensor run_rms_norm(const std::vector<c10::IValue>& arguments, const RunContext&) {
  const at::Tensor& x = arguments[0].toTensor();
  const at::Tensor weight =
      arguments[1].isNone() ? at::ones({x.size(-1)}, x.options()) : arguments[1].toTensor();
  const double epsilon = arguments[2].toDouble();
  if (!arguments[3].toBool()) return ops::rms_norm(x, weight, epsilon);
  const bool wide = x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble;
  if (wide) return ops::rms_norm(x, weight + 1, epsilon);
  // 16 bits would round the sum.
  return ops::rms_norm(x.to(at::kFloat), weight.to(at::kFloat) + 1, epsilon).to(x.scalar_type());
}

std::optional<Proposal> propose_rms_norm(const ProgramView& view, size_t anchor) {
  const std::optional<NormCall> call = norm_call(view, anchor);
  if (!call) return std::nullopt;
  Proposal proposal;
  if (!call->fits || call->vectors.size() > 1) {
    proposal.reason = "expected a tensor, and one weight of its last extent at most";
    return proposal;
  }
  const Item weight = item_or_none(call->vectors.empty() ? kNoValue : call->vectors[0]);
  for (const double epsilon : call->epsilons) {
    for (const bool less_one : {false, true}) {
      if (less_one && call->vectors.empty()) continue;
      proposal.candidates.push_back({call->output,
                                     {{"x", reference(call->x)},
                                      {"weight", weight},
                                      {"epsilon", Item(epsilon)},
                                      {"less_one", Item(less_one)}}});
    }
  }
  return proposal;
}

}  // namespace

Rewrite rms_norm_rewrite() {
  return {"rms norm", {"tessera.rms_norm", run_rms_norm}, propose_rms_norm};
}

}  // namespace tessera::program
