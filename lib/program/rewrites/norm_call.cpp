// SPDX-License-Identifier: MIT
#include "lib/program/rewrites/norm_call.h"

#include <algorithm>

namespace tessera::program {
namespace {

constexpr double kLargestEpsilon = 0.1;

bool is_norm_class(const std::string& name) { return name.find("Norm") != std::string::npos; }

void add_epsilons(const Node& node, std::vector<double>& epsilons) {
  for (const NamedArgument& argument : node.arguments) {
    const auto* item = std::get_if<Item>(&argument.value);
    const auto* number = item == nullptr ? nullptr : std::get_if<double>(item);
    if (number == nullptr || *number <= 0 || *number > kLargestEpsilon) continue;
    if (std::find(epsilons.begin(), epsilons.end(), *number) == epsilons.end()) {
      epsilons.push_back(*number);
    }
  }
}

bool is_vector(const ProgramView& view, ValueId id, int64_t n) {
  return view.value(id).sizes.size() == 1 && extent_of(view.value(id), 0) == n;
}

void check_fit(const ProgramView& view, const std::vector<ValueId>& inputs,
               const std::vector<ValueId>& parameters, NormCall& call) {
  if (inputs.size() != 1 || parameters.size() > 2) return;
  call.x = inputs[0];
  call.vectors = parameters;
  const int64_t n = extent_of(view.value(call.x), -1);
  call.fits = n > 0 && std::all_of(parameters.begin(), parameters.end(),
                                   [&](ValueId id) { return is_vector(view, id, n); });
}

// torch.nn.functional's, outside a module of its own.
std::optional<NormCall> operator_call(const ProgramView& view, const Node& node) {
  if (node.target != "aten.layer_norm.default" && node.target != "aten.rms_norm.default") {
    return std::nullopt;
  }
  NormCall call{.output = result_of(node)};
  add_epsilons(node, call.epsilons);
  if (call.epsilons.empty()) call.epsilons.push_back(1e-5);
  std::vector<ValueId> parameters;
  for (const char* name : {"weight", "bias"}) {
    if (const ValueId id = value_of(node, name); id != kNoValue) parameters.push_back(id);
  }
  check_fit(view, {value_of(node, "input")}, parameters, call);
  return call;
}

}  // namespace

std::optional<NormCall> norm_call(const ProgramView& view, size_t anchor) {
  const Node& node = view.graph().nodes[anchor];
  if (!is_norm_class(node.module_class)) return operator_call(view, node);
  const ModuleCall& module = view.call_of(anchor);
  const ValueId result = result_of(node);
  if (module.outputs.empty() || module.outputs.back() != result || view.is_free(result)) {
    return std::nullopt;
  }
  NormCall call{.output = result};
  for (const size_t i : module.nodes) add_epsilons(view.graph().nodes[i], call.epsilons);
  if (call.epsilons.empty()) call.epsilons.push_back(1e-5);  // layer_norm's own
  if (module.outputs.size() == 1) check_fit(view, module.inputs, module.parameters, call);
  return call;
}

}  // namespace tessera::program
