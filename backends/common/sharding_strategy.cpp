#include "tessera/backends/sharding_strategy.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "lib/comm/operation_scope.h"
#include "lib/core/trace.h"
#include "tessera/core/error.h"
#include "tessera/core/phase_clock.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera {

ShardingStrategy::ShardingStrategy(const ParallelConfig& config, Communicator& data)
    : config_(config), data_(data), world_(&data), shards_(&data) {}

ShardingStrategy::~ShardingStrategy() = default;

void ShardingStrategy::set_hybrid(Communicator& shards, Communicator& replicas) {
  shards_ = &shards;
  replicas_ = replicas.size() > 1 ? &replicas : nullptr;
}

StoreOptions ShardingStrategy::store_options(at::ScalarType dtype) const {
  return {.dtype = dtype,
          .wire = wire_.get(),
          .overlap = config_.overlap,
          .bucket_bytes = config_.bucket_bytes,
          .prefetch_blocks = config_.overlap ? config_.prefetch_blocks : 0,
          .host_shards = config_.offload.what == Offload::kOptimizerAndParameters,
          .pin_memory = config_.offload.pin_memory};
}

std::unique_ptr<ParameterStore> ShardingStrategy::make_parameters() {
  return std::make_unique<ResidentParameters>(units_, *shards_,
                                              store_options(config_.precision.parameter));
}

std::unique_ptr<GradientStore> ShardingStrategy::make_gradients() {
  return std::make_unique<FullGradients>(units_, *shards_,
                                         store_options(config_.precision.gradient_dtype()));
}

StepResult ShardingStrategy::forward_backward(std::span<const MicroBatch> micro_batches) {
  const TraceRange range("forward_backward");
  begin(micro_batches, /*with_gradients=*/true);
  for (size_t m = 0; m < micro_batches.size(); ++m) {
    MicroBatchRun run = make_run(m, 0, blocks_.size());
    forward(run);
    backward(run);
  }
  return finish();
}

StepResult ShardingStrategy::evaluate(std::span<const MicroBatch> micro_batches) {
  const TraceRange range("evaluate");
  begin(micro_batches, /*with_gradients=*/false);
  for (size_t m = 0; m < micro_batches.size(); ++m) {
    MicroBatchRun run = make_run(m, 0, blocks_.size());
    forward(run);
  }
  return finish();
}

void ShardingStrategy::scale_gradients(const at::Tensor& factor) {
  enter();
  order_.require_gradient(name(), "scale_gradients()");
  gradient_scale_ = gradient_scale_.defined() ? gradient_scale_ * factor : factor;
}

void ShardingStrategy::optimizer_step(double learning_rate, const at::Tensor& skip) {
  check(std::isfinite(learning_rate) && learning_rate >= 0, ErrorCode::kInvalidArgument, name(),
        ": optimizer_step() was given a learning rate of ", learning_rate,
        "; it must be 0 or a positive number. Look at the schedule it comes from");
  enter();
  order_.require_gradient(name(), "optimizer_step()");
  const TraceRange range("optimizer_step");
  const PhaseScope phase(Phase::kOptimizer);
  const InPhase named("step");
  at::NoGradGuard no_grad;
  begin_call(StepOrder::Call::kUpdate);
  learning_rate_.fill_(learning_rate);
  optimizer_->step({learning_rate_, gradient_scale_, skip});
  gradient_scale_.reset();
  order_.end();
}

void ShardingStrategy::complete_all_units() {
  for (size_t unit = 0; unit < units_.size(); ++unit) optimizer_->complete(unit);
}

void ShardingStrategy::visit(bool gradients, const ParameterVisitor& visitor) {
  at::NoGradGuard no_grad;
  for (size_t u = 0; u < units_.size(); ++u) {
    if (gradients && units_[u].frozen) continue;
    const FlatLayout& layout = units_[u].layout;
    const ForTensor of(units_[u].name);
    at::Tensor full = at::empty({layout.numel()}, learning_rate_.options());
    for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
      const at::Tensor owned = gradients          ? gradients_->owned(u, segment)
                               : units_[u].frozen ? parameters_->owned(u, segment)
                                                  : optimizer_->master(u, segment);
      const at::Tensor part = owned.to(full.options());
      const at::Tensor whole = slice_of(full, layout.segments()[segment]);
      if (layout.shards() == 1) {
        whole.copy_(part);
      } else {
        shards_->all_gather(whole, part.contiguous()).wait();
      }
    }
    for (size_t e = 0; e < layout.entries().size(); ++e) {
      const FlatEntry& entry = layout.entries()[e];
      visitor({units_[u].blocks[e], entry.name, view_of(full, entry), entry.placement});
    }
  }
}

void ShardingStrategy::visit_parameter_slices(const ParameterVisitor& visitor) {
  enter();
  complete_all_units();
  visit(/*gradients=*/false, visitor);
}

void ShardingStrategy::visit_gradient_slices(const ParameterVisitor& visitor) {
  enter();
  order_.require_gradient(name(), "visit_gradients()");
  visit(/*gradients=*/true, visitor);
}

namespace {

ParameterVisitor whole(const ParameterVisitor& visitor) {
  return [&](const VisitedParameter& part) {
    const at::Tensor value = gather_whole(part.value, part.placement);
    visitor({part.block, part.name, value, part.placement});
  };
}

}  // namespace

void ShardingStrategy::visit_parameters(const ParameterVisitor& visitor) {
  visit_parameter_slices(whole(visitor));
}

void ShardingStrategy::visit_gradients(const ParameterVisitor& visitor) {
  visit_gradient_slices(whole(visitor));
}

// Collective over the data axis.
at::Tensor ShardingStrategy::value_of(const Buffer& buffer) {
  const at::Tensor value = buffer.tensor.detach().clone();
  const ForTensor of(buffer.name);
  if (buffer.data_rank >= 0) data_.broadcast(value, buffer.data_rank).wait();
  return value;
}

void ShardingStrategy::visit_buffers(const ParameterVisitor& visitor) {
  enter();
  at::NoGradGuard no_grad;
  for (size_t b = 0; b < blocks_.size(); ++b) {
    for (const Buffer& buffer : blocks_[b]->buffers()) {
      visitor({block_names_[b], buffer.name, value_of(buffer), Placement{}});
    }
  }
}

void ShardingStrategy::adopt_statistics() {
  at::NoGradGuard no_grad;
  if (data_.size() == 1) return;
  for (const auto& block : blocks_) {
    for (Buffer& buffer : block->buffers()) {
      if (buffer.data_rank >= 0) buffer.tensor.copy_(value_of(buffer));
    }
  }
}

StrategyMemory ShardingStrategy::memory() const {
  StrategyMemory memory;
  memory.parameter_bytes = parameters_->persistent_bytes();
  memory.gradient_bytes = gradients_->persistent_bytes();
  memory.buffer_bytes = parameters_->buffer_bytes() + gradients_->buffer_bytes() + wire_->bytes();
  for (const LateSum& sum : late_sums_) {
    memory.buffer_bytes += static_cast<int64_t>(sum.staging.nbytes());
  }
  memory.host_bytes = parameters_->host_bytes();
  if (config_.offload.pin_memory && !data_.device().is_cpu()) {
    memory.pinned_bytes = memory.host_bytes;
  }
  optimizer_->add_memory(memory);
  return memory;
}

}  // namespace tessera
