// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include "lib/program/rewrites/rewrite.h"
#include "tessera/ops/functional.h"

namespace tessera::program {
namespace {

// gate, up.
at::Tensor run_gated_silu(const std::vector<c10::IValue>& arguments, const RunContext&) {
  return ops::swiglu(arguments[0].toTensor(), arguments[1].toTensor());
}
// x.
at::Tensor run_gelu_tanh(const std::vector<c10::IValue>& arguments, const RunContext&) {
  return ops::gelu_tanh(arguments[0].toTensor());
}

// x, with the error function.
at::Tensor run_gelu(const std::vector<c10::IValue>& arguments, const RunContext&) {
  return at::gelu(arguments[0].toTensor());
}

// The input of the SiLU that makes the value.
ValueId gate_of(const ProgramView& view, ValueId activated) {
  const Node* maker = activated == kNoValue ? nullptr : view.maker(activated);
  const bool silu = maker != nullptr && maker->target == "aten.silu.default";
  return silu ? value_of(*maker, "self") : kNoValue;
}

std::optional<Proposal> propose_gated_silu(const ProgramView& view, size_t anchor) {
  const Node& node = view.graph().nodes[anchor];
  if (node.target != "aten.mul.Tensor") return std::nullopt;
  Proposal proposal{.reason = "gate and input have other shapes"};
  bool gated = false;
  for (const auto& [first, second] : {std::pair("self", "other"), std::pair("other", "self")}) {
    const ValueId gate = gate_of(view, value_of(node, first)), up = value_of(node, second);
    if (gate == kNoValue || up == kNoValue) continue;
    gated = true;
    if (view.value(gate).sizes != view.value(up).sizes) continue;
    proposal.candidates.push_back({result_of(node),
                                   {{"gate", reference(gate)}, {"up", reference(up)}},
                                   {.any_extent = true}});
  }
  if (!gated) return std::nullopt;
  return proposal;
}

// "NewGELUActivation", "BloomGelu"
bool is_gelu_class(const std::string& name) {
  return name.find("GELU") != std::string::npos || name.find("Gelu") != std::string::npos;
}

// ATen's own operator of this form, or a module of a class that spells the formula out.
std::optional<Proposal> propose_gelu(const ProgramView& view, size_t anchor, bool tanh) {
  const Node& node = view.graph().nodes[anchor];
  const bool aten = node.target == "aten.gelu.default";
  const bool spelt = !aten && is_gelu_class(node.module_class) &&
                     view.call_of(anchor).outputs == std::vector<ValueId>{result_of(node)};
  if (!aten && !spelt) return std::nullopt;
  ValueId x = kNoValue;
  if (aten) {
    const Argument* form = argument_of(node, "approximate");
    const auto* text = form == nullptr ? nullptr : std::get_if<std::string>(form);
    if ((text != nullptr && *text == "tanh") != tanh) return std::nullopt;
    x = value_of(node, "self");
  } else if (view.call_of(anchor).inputs.size() == 1) {
    x = view.call_of(anchor).inputs[0];
  }
  if (x == kNoValue) return Proposal{.reason = "expected one tensor"};
  return Proposal{.candidates = {{result_of(node), {{"x", reference(x)}}, {.any_extent = true}}}};
}
std::optional<Proposal> propose_gelu_tanh(const ProgramView& view, size_t anchor) {
  return propose_gelu(view, anchor, /*tanh=*/true);
}
std::optional<Proposal> propose_exact_gelu(const ProgramView& view, size_t anchor) {
  return propose_gelu(view, anchor, /*tanh=*/false);
}

}  // namespace

Rewrite gated_silu_rewrite() {
  return {"gated silu", {"tessera.swiglu", run_gated_silu}, propose_gated_silu};
}
Rewrite gelu_tanh_rewrite() {
  return {"gelu (tanh)", {"tessera.gelu_tanh", run_gelu_tanh}, propose_gelu_tanh};
}
Rewrite gelu_rewrite() { return {"gelu", {"tessera.gelu", run_gelu}, propose_exact_gelu}; }

}  // namespace tessera::program
