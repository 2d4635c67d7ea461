// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include "lib/program/rewrites/norm_call.h"
#include "lib/program/rewrites/rewrite.h"
#include "tessera/ops/functional.h"

namespace tessera::program {
namespace {

// x, weight or None, bias or None, epsilon, whether the weight is stored less 1 (Nemotron).
at::Tensor run_layer_norm(const std::vector<c10::IValue>& arguments, const RunContext&) {
  const at::Tensor& x = arguments[0].toTensor();
  at::Tensor weight =
      arguments[1].isNone() ? at::ones({x.size(-1)}, x.options()) : arguments[1].toTensor();
  if (arguments[4].toBool()) weight = weight + 1;
  const at::Tensor bias =
      arguments[2].isNone() ? at::zeros({x.size(-1)}, x.options()) : arguments[2].toTensor();
  return ops::layer_norm(x, weight, bias, arguments[3].toDouble());
}

std::optional<Proposal> propose_layer_norm(const ProgramView& view, size_t anchor) {
  const std::optional<NormCall> call = norm_call(view, anchor);
  if (!call) return std::nullopt;
  Proposal proposal;
  if (!call->fits) {
    proposal.reason = "expected a tensor, and a weight and a bias of its last extent at most";
    return proposal;
  }
  const auto add = [&](ValueId weight, ValueId bias, double epsilon, bool less_one) {
    proposal.candidates.push_back({call->output,
                                   {{"x", reference(call->x)},
                                    {"weight", item_or_none(weight)},
                                    {"bias", item_or_none(bias)},
                                    {"epsilon", Item(epsilon)},
                                    {"less_one", Item(less_one)}}});
  };
  const size_t count = call->vectors.size();
  const ValueId first = count > 0 ? call->vectors[0] : kNoValue;
  const ValueId second = count > 1 ? call->vectors[1] : kNoValue;
  for (const double epsilon : call->epsilons) {
    for (const bool less_one : {false, true}) {
      if (count == 0 && less_one) continue;
      add(first, second, epsilon, less_one);
      if (count > 1) add(second, first, epsilon, less_one);
    }
  }
  return proposal;
}

}  // namespace

Rewrite layer_norm_rewrite() {
  return {"layer norm", {"tessera.layer_norm", run_layer_norm}, propose_layer_norm};
}

}  // namespace tessera::program
