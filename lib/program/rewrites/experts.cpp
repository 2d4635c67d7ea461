// SPDX-License-Identifier: MIT
#include "lib/program/rewrites/rewrite.h"
#include "lib/program/routed_experts.h"

namespace tessera::program {
namespace {

constexpr int64_t kSmallInner = 4;  // columns of an expert in proofs

// x, experts, weights, gate_up, down.
at::Tensor run_experts(const std::vector<c10::IValue>& arguments, const RunContext&) {
  return routed_experts(arguments[0].toTensor(), arguments[1].toTensor(), arguments[2].toTensor(),
                        arguments[3].toTensor(), arguments[4].toTensor());
}

struct Tokens {
  ValueId x = kNoValue, experts = kNoValue, weights = kNoValue;
};

bool is_integer(const Value& value) { return value.dtype == at::kLong; }

// Of what a module of experts reads, beside results of modules inside it.
Tokens tokens_of(const ProgramView& view, const ModuleCall& call, int64_t hidden) {
  Tokens found;
  for (const ValueId id : call.inputs) {
    if (is_integer(view.value(id)) && view.value(id).sizes.size() == 2) found.experts = id;
  }
  if (found.experts == kNoValue) return found;
  const Value& experts = view.value(found.experts);
  for (const ValueId id : call.inputs) {
    const Value& value = view.value(id);
    if (is_integer(value) || value.sizes.size() != 2) continue;
    if (value.sizes == experts.sizes) found.weights = id;
    if (value.sizes[0] == experts.sizes[0] && extent_of(value, 1) == hidden) found.x = id;
  }
  return found;
}

// Whether the value is a choice among so many, which therefore all exist.
bool chooses_among(const ProgramView& view, ValueId choice, int64_t count) {
  const Node* node = view.maker(choice);
  if (node == nullptr || node->target != "aten.topk.default") return false;
  const ValueId scores = value_of(*node, "self");
  return scores != kNoValue && extent_of(view.value(scores), -1) == count;
}

// The sum over a token's experts in which a module of transformers' experts ends.
std::optional<Proposal> propose_experts(const ProgramView& view, size_t anchor) {
  const Node& node = view.graph().nodes[anchor];
  const bool sums = node.target == "aten.sum.dim_IntList" &&
                    node.module_class.find("Experts") != std::string::npos;
  if (!sums || result_of(node) == kNoValue) return std::nullopt;
  const ModuleCall& call = view.call_of(anchor);
  if (call.parameters.size() != 2) {
    return Proposal{.reason = "it has other parameters than gate_up and down"};
  }
  const ValueId gate_up = call.parameters[0], down = call.parameters[1];
  const Value &wide = view.value(gate_up), &narrow = view.value(down);
  if (wide.sizes.size() != 3 || narrow.sizes.size() != 3) {
    return Proposal{.reason = "its parameters are no tensors of all experts"};
  }
  const int64_t count = extent_of(wide, 0), inner = extent_of(narrow, 2);
  const int64_t hidden = extent_of(wide, 2);
  if (extent_of(wide, 1) != 2 * inner || extent_of(narrow, 0) != count ||
      extent_of(narrow, 1) != hidden) {
    return Proposal{.reason = "its parameters lie in another order than [experts, out, in]"};
  }
  const Tokens tokens = tokens_of(view, call, hidden);
  if (tokens.x == kNoValue || tokens.weights == kNoValue) {
    return Proposal{.reason = "it reads something else than tokens, their experts and weights"};
  }
  if (!chooses_among(view, tokens.experts, count)) {
    return Proposal{.reason = "its experts are not chosen by one top-k of all of them"};
  }
  return Proposal{.candidates = {{result_of(node),
                                  {{"x", reference(tokens.x)},
                                   {"experts", reference(tokens.experts)},
                                   {"weights", reference(tokens.weights)},
                                   {"gate_up", reference(gate_up)},
                                   {"down", reference(down)}},
                                  {.integers = count},
                                  {{gate_up, 1, 2 * kSmallInner}, {down, 2, kSmallInner}}}}};
}

}  // namespace

Rewrite experts_rewrite() {
  return {"expert layer", {"tessera.experts", run_experts}, propose_experts};
}

}  // namespace tessera::program
