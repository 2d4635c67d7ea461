// SPDX-License-Identifier: MIT
// Access to a ShardingStrategy's tensors by name, between its calls.
#include "backends/common/forward_passes.h"
#include "backends/common/parameter_visits.h"
#include "backends/common/step_agreement.h"
#include "backends/common/strategy_state.h"
#include "tessera/backends/sharding_strategy.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera {
namespace {

ParameterVisitor gathering(const ParameterVisitor& visitor) {
  return [&](const VisitedParameter& part) {
    const at::Tensor value = gather_whole(part.value, part.placement);
    visitor({part.block, part.name, value, part.placement});
  };
}

}  // namespace

void ShardingStrategy::visit_parameter_slices(const ParameterVisitor& visitor) {
  enter();
  visits_->parameters(visitor);
}

void ShardingStrategy::visit_gradient_slices(const ParameterVisitor& visitor) {
  require_gradient("visit_gradients()");
  visits_->gradients(visitor);
}

void ShardingStrategy::visit_parameters(const ParameterVisitor& visitor) {
  visit_parameter_slices(gathering(visitor));
}

void ShardingStrategy::visit_gradients(const ParameterVisitor& visitor) {
  visit_gradient_slices(gathering(visitor));
}

void ShardingStrategy::visit_buffers(const ParameterVisitor& visitor) {
  enter();
  visits_->buffers(visitor);
}

void ShardingStrategy::require_gradient(const char* what) {
  enter();
  passes_->close();
  agreement_->order().require_gradient(what);
}

void ShardingStrategy::for_each_gradient(const GradientVisitor& visitor) {
  require_gradient("for_each_gradient()");
  visits_->owned_gradients(visitor);
}

NamedTensors ShardingStrategy::squared_norms() {
  require_gradient("gradient_norms()");
  return visits_->squared_norms();
}

NamedTensors ShardingStrategy::gradient_norms() {
  NamedTensors norms = squared_norms();
  for (auto& [name, value] : norms) value = value.sqrt();
  return norms;
}

std::vector<StateTensor> ShardingStrategy::state() {
  enter();
  return state_->pieces();
}

void ShardingStrategy::state_restored() {
  enter();
  agreement_->order().forget_gradient();
  ++weights_version_;
  state_->restored();
}

}  // namespace tessera
