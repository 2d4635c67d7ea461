// SPDX-License-Identifier: MIT
#include "lib/plan/rules.h"

#include <ATen/core/Tensor.h>

#include "backends/check_config.h"

namespace tessera {
namespace {

double bytes_of(at::ScalarType dtype) { return static_cast<double>(at::elementSize(dtype)); }

}  // namespace

Dtypes::Dtypes(const PrecisionConfig& p)
    : parameter(bytes_of(p.parameter)),
      gradient(bytes_of(p.gradient_dtype())),
      reduce(bytes_of(p.reduce_dtype())) {}

bool converts(const PrecisionConfig& p) { return p.reduce_dtype() != p.gradient_dtype(); }

int end_ranks(const LayoutPlan& plan) {
  return plan.parallel.pipeline.shared_vocabulary ? plan.mesh.pipeline : plan.mesh.tensor;
}

ShardingRules rules_of(const LayoutPlan& plan) {
  ShardingRules rules = sharding_rules(plan.parallel, plan.mesh);
  rules.state = plan.moments.rules;
  return rules;
}

}  // namespace tessera
