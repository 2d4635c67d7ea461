// One micro-batch through the blocks of a ShardingStrategy, and what frames it.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "tessera/backends/sharding_strategy.h"
#include "tessera/core/error.h"
#include "tessera/core/trace.h"

namespace tessera {

void ShardingStrategy::acquire_block(size_t block) {
  for (size_t unit : units_of_block_[block]) {
    optimizer_->complete(unit);
    parameters_->acquire(unit);
  }
}

// Starts the gathers of the next units beyond this block, on the way to block `end` (exclusive).
void ShardingStrategy::prefetch_after(size_t block, size_t end, int direction) {
  const std::vector<size_t>* seen = &units_of_block_[block];
  int left = config_.prefetch_blocks;
  for (size_t next = block + direction; next != end && left > 0; next += direction) {
    if (units_of_block_[next] == *seen) continue;  // several blocks in one unit
    seen = &units_of_block_[next];
    --left;
    for (size_t unit : *seen) {
      optimizer_->complete(unit);
      parameters_->prefetch(unit);
    }
  }
}

void ShardingStrategy::release_block(size_t block) {
  for (size_t unit : units_of_block_[block]) parameters_->release(unit);
}

void ShardingStrategy::begin(std::span<const MicroBatch> micro_batches, bool with_gradients) {
  check(parameters_ != nullptr, ErrorCode::kInternal, name(), ": attach() was not called");
  check(
      !micro_batches.empty(), ErrorCode::kInvalidArgument, name(),
      with_gradients ? ": a step without micro-batches" : ": an evaluation without micro-batches");
  with_gradients_ = with_gradients;
  micro_batches_.assign(micro_batches.begin(), micro_batches.end());
  const uint64_t step_seed = block_seed(steps_begun_, static_cast<size_t>(data_.rank()));
  double local_targets = 0;
  for (size_t m = 0; m < micro_batches_.size(); ++m) {
    micro_batches_[m].seed = block_seed(step_seed, m);
    local_targets += static_cast<double>(micro_batches_[m].target_count);
  }
  targets_ =
      at::full({1}, local_targets, at::TensorOptions().dtype(at::kDouble).device(data_.device()));
  targets_work_ = data_.all_reduce(targets_);
  loss_gradient_.reset();
  sums_.reset();
  if (with_gradients) {
    ++steps_begun_;
    gradient_scale_.reset();
    gradients_->begin_step();
  }
}

MicroBatchRun ShardingStrategy::make_run(size_t index, size_t first_block,
                                         size_t block_count) const {
  MicroBatchRun run;
  run.micro_batch = micro_batches_.at(index);
  run.micro_batch.training = with_gradients_;
  run.first_block = first_block;
  run.block_count = block_count;
  run.with_gradients = with_gradients_;
  run.last_micro_batch = index + 1 == micro_batches_.size();
  return run;
}

// d(objective)/d(loss sum), the same for every micro-batch of the step.
at::Tensor ShardingStrategy::loss_gradient() {
  if (!loss_gradient_.defined()) {
    targets_work_.wait();
    loss_gradient_ = targets_.clamp_min(1).reciprocal().to(at::kFloat).squeeze(0);
    if (loss_scale_.defined()) loss_gradient_ = loss_gradient_ * loss_scale_;
  }
  return loss_gradient_;
}

void ShardingStrategy::forward(MicroBatchRun& run) {
  const TraceRange range("forward");
  const at::AutoGradMode gradients(run.with_gradients);
  const size_t end = run.first_block + run.block_count;
  run.blocks.resize(run.block_count);
  at::Tensor hidden = std::exchange(run.hidden, {});
  for (size_t i = run.first_block; i < end; ++i) {
    acquire_block(i);
    prefetch_after(i, end, +1);
    if (has_loss_ && i + 1 == blocks_.size()) {
      forward_loss(run, i, hidden);
      hidden.reset();
    } else {
      hidden = forward_block(run, i, hidden);
    }
    release_block(i);
  }
  run.hidden = hidden.defined() ? hidden.detach() : hidden;
}

at::Tensor ShardingStrategy::forward_block(MicroBatchRun& run, size_t index,
                                           const at::Tensor& hidden) {
  const TraceRange range("block forward");
  if (!run.with_gradients) return blocks_[index]->forward(hidden, run.micro_batch);
  MicroBatchRun::BlockRun& block = run.blocks[index - run.first_block];
  if (hidden.defined()) {
    block.input = hidden.detach();
    block.input.set_requires_grad(at::isFloatingType(block.input.scalar_type()));
  }
  if (config_.gradient_checkpointing) {
    at::NoGradGuard no_grad;
    return blocks_[index]->forward(block.input, run.micro_batch);
  }
  block.output = blocks_[index]->forward(block.input, run.micro_batch);
  return block.output;
}

// Gradients are ready for a loss that accumulates them during forward, and its backward follows at
// once: its scores and its parameters are needed once, whatever the schedule.
void ShardingStrategy::forward_loss(MicroBatchRun& run, size_t index, const at::Tensor& hidden) {
  const TraceRange range("loss");
  const auto& units = units_of_block_[index];
  at::Tensor input = hidden;
  if (run.with_gradients) {
    for (size_t unit : units) gradients_->before_backward(unit);
    run.micro_batch.loss_gradient = loss_gradient();
    if (hidden.defined()) {
      input = hidden.detach();
      input.set_requires_grad(at::isFloatingType(input.scalar_type()));
    }
  }
  const at::Tensor output = blocks_[index]->forward(input, run.micro_batch);
  check(output.defined() && output.dim() <= 1 && output.numel() >= 1, ErrorCode::kInvalidArgument,
        "the last block must return a 1-D tensor whose first element is the loss sum, but it "
        "returned ",
        output.defined() ? concat("shape ", output.sizes()) : std::string("nothing"));
  const at::Tensor sums = output.detach().reshape({-1}).to(at::kDouble);
  sums_ = sums_.defined() ? sums_ + sums : sums.clone();
  if (!run.with_gradients) return;
  if (output.requires_grad()) {
    const at::Tensor loss = output.reshape({-1}).select(0, 0);
    torch::autograd::backward({loss}, {run.micro_batch.loss_gradient.to(loss.scalar_type())});
  }
  run.gradient = input.defined() ? input.grad() : at::Tensor();
  for (size_t unit : units) gradients_->after_backward(unit, run.last_micro_batch);
}

void ShardingStrategy::backward(MicroBatchRun& run) {
  const TraceRange range("backward");
  const at::AutoGradMode gradients(true);
  const size_t loss = has_loss_ ? blocks_.size() - 1 : blocks_.size();
  at::Tensor gradient = std::exchange(run.gradient, {});
  for (size_t i = std::min(run.first_block + run.block_count, loss); i-- > run.first_block;) {
    const TraceRange block_range("block backward");
    MicroBatchRun::BlockRun& block = run.blocks[i - run.first_block];
    acquire_block(i);
    for (size_t unit : units_of_block_[i]) gradients_->before_backward(unit);
    prefetch_after(i, run.first_block - 1, -1);
    if (!block.output.defined()) block.output = blocks_[i]->forward(block.input, run.micro_batch);
    if (block.output.requires_grad()) {
      check(gradient.defined(), ErrorCode::kInvalidArgument, "block ", i + 1,
            " gave no gradient to its input; its output must depend on it");
      torch::autograd::backward({block.output}, {gradient});
    }
    gradient = block.input.defined() ? block.input.grad() : at::Tensor();
    block = {};
    release_block(i);
    for (size_t unit : units_of_block_[i]) gradients_->after_backward(unit, run.last_micro_batch);
  }
  run.gradient = gradient;
}

Work ShardingStrategy::sum_owned(size_t unit, Communicator& comm) {
  Group group(comm);
  for (size_t segment = 0; segment < units_[unit].layout.segments().size(); ++segment) {
    comm.all_reduce(gradients_->owned(unit, segment));
  }
  return group.end();
}

// The store has summed the unit's gradient of this step over the shards' ranks; other ranks may
// hold parts of the sum.
void ShardingStrategy::gradient_reduced(size_t unit) {
  if (replicas_ != nullptr) {
    replica_works_.push_back(sum_owned(unit, *replicas_));
    if (!config_.overlap) replica_works_.back().wait();
    return;
  }
  const bool shared = std::any_of(shared_units_.begin(), shared_units_.end(),
                                  [&](const auto& item) { return item.first == unit; });
  if (!shared) optimizer_->gradient_ready(unit);
}

void ShardingStrategy::sum_over_holders() {
  for (Work& work : replica_works_) work.wait();
  replica_works_.clear();
  std::vector<Work> works;  // all launched before any is waited for: holders differ by unit
  for (const auto& [unit, holders] : shared_units_) works.push_back(sum_owned(unit, *holders));
  for (Work& work : works) work.wait();
  if (replicas_ != nullptr) {
    for (size_t unit = 0; unit < units_.size(); ++unit) optimizer_->gradient_ready(unit);
  } else {
    for (const auto& [unit, holders] : shared_units_) optimizer_->gradient_ready(unit);
  }
}

StepResult ShardingStrategy::finish() {
  at::NoGradGuard no_grad;
  Work sums_work;
  if (sums_.defined()) sums_work = data_.all_reduce(sums_);
  if (with_gradients_) {
    gradients_->finish();
    sum_over_holders();
  }
  targets_work_.wait();
  sums_work.wait();
  micro_batches_.clear();
  StepResult result{.target_count = targets_[0].to(at::kFloat)};
  if (sums_.defined()) {
    result.loss = (sums_[0] / targets_[0].clamp_min(1)).to(at::kFloat);
    result.counters = sums_.narrow(0, 1, sums_.numel() - 1).to(at::kFloat);
  }
  return result;
}

}  // namespace tessera
