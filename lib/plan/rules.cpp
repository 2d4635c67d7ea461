#include "lib/plan/rules.h"

#include <ATen/core/Tensor.h>

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

int shard_ranks(const LayoutPlan& plan) {
  const int chosen = plan.parallel.shard_ranks;
  return plan.parallel.strategy == "fsdp" && chosen > 0 ? chosen : plan.mesh.data;
}

int layout_shards(const LayoutPlan& plan) {
  const std::string& name = plan.parallel.strategy;
  return name == "single" || name == "ddp" ? 1 : shard_ranks(plan);
}

bool gathers(const LayoutPlan& plan) {
  const std::string& name = plan.parallel.strategy;
  const bool to_host = plan.parallel.offload.what == Offload::kOptimizerAndParameters;
  return name == "zero3" || (name == "fsdp" && (shard_ranks(plan) > 1 || to_host));
}

bool shards_gradients(const LayoutPlan& plan) {
  const bool boundary = plan.parallel.reduce_at_boundary;
  const std::string& name = plan.parallel.strategy;
  return name == "zero3" || (name == "zero2" && !boundary) ||
         (name == "fsdp" && shard_ranks(plan) > 1 && !boundary);
}

}  // namespace tessera
