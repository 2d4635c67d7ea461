#include "tessera/backends/sharding_strategy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/core/error.h"
#include "tessera/core/trace.h"
#include "tessera/ops/update.h"

namespace tessera {

ShardingStrategy::ShardingStrategy(const ParallelConfig& config, Communicator& data)
    : config_(config), data_(data) {}

ShardingStrategy::~ShardingStrategy() = default;

at::ScalarType ShardingStrategy::gradient_dtype() const {
  return config_.precision.gradient.value_or(config_.precision.parameter);
}

StoreOptions ShardingStrategy::store_options(at::ScalarType dtype) const {
  return {.dtype = dtype,
          .reduce_dtype = config_.precision.reduce.value_or(gradient_dtype()),
          .overlap = config_.overlap,
          .bucket_bytes = config_.bucket_bytes,
          .prefetch_blocks = config_.overlap ? config_.prefetch_blocks : 0};
}

void ShardingStrategy::acquire_block(size_t block) {
  for (size_t unit : units_of_block_[block]) parameters_->acquire(unit);
}

void ShardingStrategy::prefetch_block(size_t block) {
  for (size_t unit : units_of_block_[block]) parameters_->prefetch(unit);
}

void ShardingStrategy::release_block(size_t block) {
  for (size_t unit : units_of_block_[block]) parameters_->release(unit);
}

// With gradients the last block stays acquired: its backward follows at once, and its gradients are
// ready for a loss that accumulates them during forward.
void ShardingStrategy::forward(MicroBatchRun& run, bool with_gradients) {
  const TraceRange range("forward");
  const size_t last = blocks_.size() - 1;
  run.blocks.resize(blocks_.size());
  at::Tensor hidden;
  for (size_t i = 0; i <= last; ++i) {
    acquire_block(i);
    const size_t ahead = static_cast<size_t>(config_.prefetch_blocks);
    for (size_t next = i + 1; next <= std::min(last, i + ahead); ++next) prefetch_block(next);
    const TraceRange block_range("block forward");
    MicroBatchRun::BlockRun& block = run.blocks[i];
    if (with_gradients) {
      if (i == last) {
        for (size_t unit : units_of_block_[i]) gradients_->before_backward(unit);
      }
      if (hidden.defined()) {
        block.input = hidden.detach();
        block.input.set_requires_grad(at::isFloatingType(block.input.scalar_type()));
      }
      block.output = blocks_[i]->forward(block.input, run.micro_batch);
      hidden = block.output;
      if (i < last) release_block(i);
    } else {
      hidden = blocks_[i]->forward(hidden, run.micro_batch);
      release_block(i);
    }
  }
  if (!with_gradients) run.blocks[last].output = hidden;
  const at::Tensor& sums = run.blocks[last].output;
  check(sums.defined() && sums.dim() <= 1 && sums.numel() >= 1, ErrorCode::kInvalidArgument,
        "the last block must return a 1-D tensor whose first element is the loss sum, but it "
        "returned ",
        sums.defined() ? concat("shape ", sums.sizes()) : std::string("nothing"));
}

void ShardingStrategy::backward(MicroBatchRun& run, bool last_micro_batch) {
  const TraceRange range("backward");
  at::Tensor gradient;
  for (size_t i = blocks_.size(); i-- > 0;) {
    const TraceRange block_range("block backward");
    MicroBatchRun::BlockRun& block = run.blocks[i];
    if (i + 1 < blocks_.size()) {
      acquire_block(i);
      for (size_t unit : units_of_block_[i]) gradients_->before_backward(unit);
    }
    const size_t ahead = static_cast<size_t>(config_.prefetch_blocks);
    for (size_t next = 1; next <= std::min(i, ahead); ++next) prefetch_block(i - next);
    if (block.output.requires_grad()) {
      if (!gradient.defined()) {
        block.output = block.output.reshape({-1}).select(0, 0);
        gradient = run.micro_batch.loss_gradient.to(block.output.scalar_type());
      }
      torch::autograd::backward({block.output}, {gradient});
    }
    gradient = block.input.defined() ? block.input.grad() : at::Tensor();
    block = {};
    release_block(i);
    for (size_t unit : units_of_block_[i]) gradients_->after_backward(unit, last_micro_batch);
    check(gradient.defined() || i == 0 || !run.blocks[i - 1].output.requires_grad(),
          ErrorCode::kInvalidArgument, "block ", i,
          " gave no gradient to its input; its output must depend on it");
  }
}

StepResult ShardingStrategy::forward_backward(std::span<const MicroBatch> micro_batches) {
  const TraceRange range("forward_backward");
  check(parameters_ != nullptr, ErrorCode::kInternal, name(), ": attach() was not called");
  check(!micro_batches.empty(), ErrorCode::kInvalidArgument, name(),
        ": a step without micro-batches");
  gradient_scale_.reset();
  int64_t local_targets = 0;
  for (const auto& micro_batch : micro_batches) local_targets += micro_batch.target_count;
  const auto doubles = at::TensorOptions().dtype(at::kDouble).device(data_.device());
  at::Tensor targets = at::full({1}, static_cast<double>(local_targets), doubles);
  Work targets_work = data_.all_reduce(targets);

  gradients_->begin_step();
  at::Tensor loss_gradient, sums;
  for (size_t m = 0; m < micro_batches.size(); ++m) {
    MicroBatchRun run{micro_batches[m], {}};
    if (!loss_gradient.defined()) {
      targets_work.wait();
      loss_gradient = targets.clamp_min(1).reciprocal().to(at::kFloat).squeeze(0);
      if (loss_scale_.defined()) loss_gradient = loss_gradient * loss_scale_;
    }
    run.micro_batch.loss_gradient = loss_gradient;
    forward(run, /*with_gradients=*/true);
    const at::Tensor output = run.blocks.back().output.detach().reshape({-1}).to(at::kDouble);
    sums = sums.defined() ? sums + output : output.clone();
    backward(run, m + 1 == micro_batches.size());
  }
  Work sums_work = data_.all_reduce(sums);
  gradients_->finish();
  sums_work.wait();
  return {.loss = (sums[0] / targets[0].clamp_min(1)).to(at::kFloat),
          .target_count = targets[0].to(at::kFloat),
          .counters = sums.narrow(0, 1, sums.numel() - 1).to(at::kFloat)};
}

StepResult ShardingStrategy::evaluate(std::span<const MicroBatch> micro_batches) {
  const TraceRange range("evaluate");
  check(!micro_batches.empty(), ErrorCode::kInvalidArgument, name(),
        ": an evaluation without micro-batches");
  at::NoGradGuard no_grad;
  at::Tensor sums;  // {loss sum, counters..., targets}
  for (const auto& micro_batch : micro_batches) {
    MicroBatchRun run{micro_batch, {}};
    forward(run, /*with_gradients=*/false);
    at::Tensor output = run.blocks.back().output.reshape({-1}).to(at::kDouble);
    output = at::cat(
        {output, at::full({1}, static_cast<double>(micro_batch.target_count), output.options())});
    sums = sums.defined() ? sums + output : output;
  }
  data_.all_reduce(sums).wait();
  const int64_t last = sums.numel() - 1;
  return {.loss = (sums[0] / sums[last].clamp_min(1)).to(at::kFloat),
          .target_count = sums[last].to(at::kFloat),
          .counters = sums.narrow(0, 1, last - 1).to(at::kFloat)};
}

at::Tensor ShardingStrategy::grad_norm_squared() {
  const TraceRange range("grad_norm");
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> owned;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    for (size_t segment = 0; segment < units_[unit].layout.segments().size(); ++segment) {
      owned.push_back(gradients_->owned(unit, segment));
    }
  }
  at::Tensor sum = ops::square_sum(owned).reshape({1});
  if (cut().shards > 1) data_.all_reduce(sum).wait();
  if (gradient_scale_.defined()) sum = sum * gradient_scale_ * gradient_scale_;
  return sum.squeeze(0);
}

void ShardingStrategy::scale_gradients(const at::Tensor& factor) {
  gradient_scale_ = gradient_scale_.defined() ? gradient_scale_ * factor : factor;
}

void ShardingStrategy::optimizer_step(double learning_rate, const at::Tensor& skip) {
  const TraceRange range("optimizer_step");
  at::NoGradGuard no_grad;
  learning_rate_.fill_(learning_rate);
  optimizer_->begin_step({learning_rate_, gradient_scale_, skip});
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    optimizer_->update(optimizer_ranges_[unit].first, optimizer_ranges_[unit].second);
    parameters_->publish(unit);
  }
  gradient_scale_.reset();
}

void ShardingStrategy::visit(const std::function<at::Tensor(size_t, size_t)>& owned,
                             const ParameterVisitor& visitor) {
  at::NoGradGuard no_grad;
  for (size_t u = 0; u < units_.size(); ++u) {
    const FlatLayout& layout = units_[u].layout;
    at::Tensor full = at::empty({layout.numel()}, learning_rate_.options());
    for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
      const at::Tensor part = owned(u, segment).to(at::kFloat);
      const at::Tensor whole = slice_of(full, layout.segments()[segment]);
      if (layout.shards() == 1) {
        whole.copy_(part);
      } else {
        data_.all_gather(whole, part.contiguous()).wait();
      }
    }
    for (const auto& entry : layout.entries()) {
      visitor(units_[u].block, entry.name, view_of(full, entry));
    }
  }
}

void ShardingStrategy::visit_parameters(const ParameterVisitor& visitor) {
  visit([&](size_t unit, size_t segment) { return master(unit, segment); }, visitor);
}

void ShardingStrategy::visit_gradients(const ParameterVisitor& visitor) {
  visit([&](size_t unit, size_t segment) { return gradients_->owned(unit, segment); }, visitor);
}

StrategyMemory ShardingStrategy::memory() const {
  StrategyMemory memory;
  memory.parameter_bytes = parameters_->persistent_bytes();
  memory.gradient_bytes = gradients_->persistent_bytes();
  memory.buffer_bytes = parameters_->buffer_bytes() + gradients_->buffer_bytes();
  memory.optimizer_bytes = optimizer_->state_bytes();
  for (const auto& tensor : masters_) {
    if (tensor.defined()) memory.optimizer_bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return memory;
}

int64_t ShardingStrategy::parameter_count() const {
  int64_t sum = 0;
  for (const auto& unit : units_) sum += unit.layout.parameter_numel();
  return sum;
}

}  // namespace tessera
