// SPDX-License-Identifier: MIT
// One micro-batch through the blocks of a ShardingStrategy, with its begin and end.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "backends/common/allocator_reserve.h"
#include "backends/common/attached_model.h"
#include "backends/common/block_backward.h"
#include "backends/common/frozen_handles.h"
#include "backends/common/replicated_gradient_reducer.h"
#include "backends/common/scoped_gradient_redirect.h"
#include "backends/common/step_agreement.h"
#include "backends/common/step_graphs.h"
#include "lib/comm/operation_scope.h"
#include "lib/core/gradient_columns.h"
#include "lib/core/trace.h"
#include "tessera/backends/sharding_strategy.h"
#include "tessera/core/deferred_gradients.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tessera/core/phase_clock.h"

namespace tessera {
namespace {

const std::vector<size_t>& no_units() {
  static const std::vector<size_t> none;
  return none;
}

}  // namespace

void ShardingStrategy::acquire_block(size_t block) {
  for (size_t unit : model_->units_with_block[block]) optimizer_->complete(unit);
  for (size_t unit : model_->units_of_block[block]) parameters_->acquire(unit);
}

// Starts the next gathers after this block's, towards block `end` (exclusive).
void ShardingStrategy::prefetch_after(size_t block, size_t end, int direction) {
  const std::vector<size_t>* seen = &model_->messages_of_block[block];
  int left = config_.prefetch_blocks;
  for (size_t next = block + direction; next != end && left > 0; next += direction) {
    // Blocks without parameters, or in messages already seen, need no gather.
    const std::vector<size_t>& messages = model_->messages_of_block[next];
    if (std::ranges::includes(*seen, messages)) continue;
    seen = &messages;
    --left;
    for (size_t unit : model_->units_with_block[next]) optimizer_->complete(unit);
    for (size_t unit : model_->units_of_block[next]) parameters_->prefetch(unit);
  }
}

void ShardingStrategy::release_block(size_t block) {
  for (size_t unit : model_->units_of_block[block]) parameters_->release(unit);
}

void ShardingStrategy::begin(std::span<const MicroBatch> micro_batches, bool with_gradients,
                             const BackwardOptions& options) {
  enter();
  StepOrder& order = agreement_->order();
  if (with_gradients) model_->require_trained(name());
  if (with_gradients && options.accumulate) {
    order.require_no_lost_gradient();
  } else if (with_gradients) {
    order.require_gradient_used();
  }
  const bool adds = with_gradients && order.has_new();
  check(
      !micro_batches.empty(), ErrorCode::kInvalidArgument, name(),
      with_gradients ? ": a step without micro-batches" : ": an evaluation without micro-batches");
  step_->with_gradients = with_gradients;
  step_->with_scores = step_->is_pass = false;
  step_->accumulates = options.accumulate;
  step_->micro_batches.assign(micro_batches.begin(), micro_batches.end());
  // Seed by the micro-batch's index in the global batch: one rank with all of them draws the same.
  const uint64_t step_seed =
      block_seed(model_->seed, static_cast<size_t>(steps_begun_.item<int64_t>()));
  const size_t first = static_cast<size_t>(data().rank()) * step_->micro_batches.size();
  step_->seeds.clear();
  for (size_t m = 0; m < step_->micro_batches.size(); ++m) {
    check_counts(step_->micro_batches[m]);
    model_->require_packed_rows(step_->micro_batches[m], name());
    step_->seeds.push_back(block_seed(step_seed, first + m));
  }
  agreement_->begin(with_gradients ? StepOrder::Call::kStep : StepOrder::Call::kEvaluation, adds);
  agreement_->tell();
  step_->loss_gradient.reset();
  step_->sums.reset();
  if (with_gradients) {
    begin_gradients(adds);
    room_->make_for(step_->micro_batches);
  } else {
    model_->adopt_statistics(data());
  }
}

MicroBatchRun ShardingStrategy::make_run(size_t index, size_t first_block,
                                         size_t block_count) const {
  MicroBatchRun run;
  run.micro_batch = step_->micro_batches.at(index);
  BlockContext& context = run.context;
  if (!step_->seeds.empty()) context.seed = step_->seeds.at(index);
  context.training = step_->with_gradients;
  context.save_norm_outputs = step_->with_gradients && config_.saves_norm_outputs();
  if (step_->with_gradients) {
    context.gradient_columns = std::make_shared<GradientColumns>();
    context.deferred_rows = gradients_->deferred_rows();
  }
  context.data_axis = &data();
  run.first_block = first_block;
  run.block_count = block_count;
  run.with_gradients = step_->with_gradients;
  run.with_scores = step_->with_scores;
  run.last_micro_batch = index + 1 == step_->micro_batches.size();
  return run;
}

at::Tensor ShardingStrategy::loss_gradient() {
  if (!step_->loss_gradient.defined()) {
    agreement_->wait();
    if (!divisors_.seed.defined()) {
      divisors_.seed = agreement_->targets().clamp_min(1).to(at::kDouble);
    }
    step_->loss_gradient = divisors_.seed.reciprocal().to(at::kFloat);
    if (loss_scale_.defined()) step_->loss_gradient = step_->loss_gradient * loss_scale_;
  }
  return step_->loss_gradient;
}

void ShardingStrategy::forward(MicroBatchRun& run) {
  const TraceRange range("forward");
  const PhaseScope phase(Phase::kForward);
  const InPhase named(step_->phase());
  const at::AutoGradMode gradients(run.with_gradients);
  const size_t end = run.first_block + run.block_count;
  run.blocks.resize(run.block_count);
  at::Tensor hidden = std::exchange(run.hidden, {});
  bool is_trained = hidden.defined();  // an earlier stage may be trained
  is_trained = is_trained || run.input_gradients;
  for (size_t i = run.first_block; i < end; ++i) {
    MicroBatchRun::BlockRun& block = run.blocks[i - run.first_block];
    if (run.with_gradients && hidden.defined()) {
      block.input = hidden.detach();
      block.input.set_requires_grad(is_trained && at::isFloatingType(hidden.scalar_type()));
    }
    is_trained = is_trained || !trained_units(run, i).empty();
    block.has_backward = run.with_gradients && is_trained;
    if (defers(run, i, block.input)) block.deferred = std::make_shared<DeferredGradients>();
    run.context.deferred_gradients = block.deferred;
    const ForTensor of(model_->names[i]);
    acquire_block(i);
    prefetch_after(i, end, +1);
    if (is_loss(i) && !run.with_scores) {
      forward_loss(run, i, hidden);
      hidden.reset();
    } else {
      const FrozenHandles frozen(*model_, i, /*freeze=*/!run.parameter_gradients);
      hidden = forward_block(run, i, hidden);
    }
    release_block(i);
  }
  run.hidden = hidden.defined() ? hidden.detach() : hidden;
}

at::Tensor ShardingStrategy::forward_block(MicroBatchRun& run, size_t index,
                                           const at::Tensor& hidden) {
  const TraceRange range("block forward");
  if (!run.with_gradients) return call_block(run, index, hidden);
  MicroBatchRun::BlockRun& block = run.blocks[index - run.first_block];
  bool& will_recompute = run.context.will_recompute;
  will_recompute = block.has_backward && recomputes(index);
  if (will_recompute || !block.has_backward) {
    at::NoGradGuard no_grad;
    const at::Tensor output = call_block(run, index, block.input);
    will_recompute = false;
    return output;
  }
  block.output = call_block(run, index, block.input);
  return block.output;
}

at::Tensor ShardingStrategy::call_block(const MicroBatchRun& run, size_t index,
                                        const at::Tensor& hidden) {
  if (run.with_scores && is_loss(index)) return forward_scores(run, hidden);
  if (!run.context.save_norm_outputs || !recomputes(index)) {
    return model_->blocks[index]->forward(hidden, run.micro_batch, run.context);
  }
  BlockContext keeps_nothing = run.context;
  keeps_nothing.save_norm_outputs = false;
  return model_->blocks[index]->forward(hidden, run.micro_batch, keeps_nothing);
}

bool ShardingStrategy::recomputes(size_t block) const {
  return config_.gradient_checkpointing || model_->recomputed[block];
}

// [Note: deferred weight gradients]
// Units are reduced when their gradients are complete, by collectives in the same order on all data
// ranks. So deferral depends only on what these ranks have in common, not on the micro-batch. All
// gradients of a unit are computed at one point of the schedule: blocks that share units defer
// nothing.
bool ShardingStrategy::defers(const MicroBatchRun& run, size_t index,
                              const at::Tensor& input) const {
  if (!run.splits_backward || !input.defined() || !input.requires_grad() || is_loss(index)) {
    return false;
  }
  const auto alone = [&](size_t unit) { return model_->units[unit].uses == 1; };
  return std::ranges::all_of(trained_units(run, index), alone) &&
         model_->blocks[index]->defers_gradients(input, run.context);
}

bool ShardingStrategy::is_loss(size_t block) const {
  return model_->has_loss && block + 1 == model_->blocks.size();
}

const std::vector<size_t>& ShardingStrategy::trained_units(const MicroBatchRun& run,
                                                           size_t block) const {
  return run.parameter_gradients ? model_->trained_units_of_block[block] : no_units();
}

// The loss may accumulate gradients in forward, and its backward follows at once, so its scores and
// parameters are needed only once under any schedule.
void ShardingStrategy::forward_loss(MicroBatchRun& run, size_t index, const at::Tensor& hidden) {
  const TraceRange range("loss");
  const auto& units = model_->trained_units_of_block[index];
  const at::Tensor input =
      run.with_gradients ? std::exchange(run.blocks[index - run.first_block].input, {}) : hidden;
  if (run.with_gradients) {
    for (size_t unit : units) gradients_->before_backward(unit);
    run.context.loss_gradient = loss_gradient();
  }
  const at::Tensor output = model_->blocks[index]->forward(input, run.micro_batch, run.context);
  check(output.defined() && output.dim() <= 1 && output.numel() >= 1, ErrorCode::kInvalidArgument,
        "the last block must return a 1-D tensor whose first element is the loss sum, but it "
        "returned ",
        output.defined() ? concat("shape ", output.sizes()) : std::string("nothing"));
  const at::Tensor sums = output.detach().reshape({-1}).to(at::kDouble);
  step_->sums = step_->sums.defined() ? step_->sums + sums : sums.clone();
  if (!run.with_gradients) return;
  if (output.requires_grad()) {
    const PhaseScope phase(Phase::kBackward);
    const InPhase named("backward");
    const at::Tensor loss = output.reshape({-1}).select(0, 0);
    torch::autograd::backward({loss}, {run.context.loss_gradient.to(loss.scalar_type())});
  }
  run.gradient = input.defined() ? input.grad() : at::Tensor();
  for (size_t unit : units) gradients_->after_backward(unit, run.last_micro_batch);
}

void ShardingStrategy::backward(MicroBatchRun& run) {
  const TraceRange range("backward");
  const PhaseScope phase(Phase::kBackward);
  const InPhase named("backward");
  const at::AutoGradMode gradients(true);
  const bool after_loss = model_->has_loss && !run.with_scores;  // its backward is done
  const size_t last = model_->blocks.size() - (after_loss ? 1 : 0);
  at::Tensor gradient = std::exchange(run.gradient, {});
  const size_t end = run.first_block + run.block_count;
  size_t first = run.first_block;  // nothing before it is trained
  while (first < end && !run.blocks[first - run.first_block].has_backward) ++first;
  for (size_t i = std::min(end, last); i-- > first;) {
    const TraceRange block_range("block backward");
    const ForTensor of(model_->names[i]);
    MicroBatchRun::BlockRun& block = run.blocks[i - run.first_block];
    acquire_block(i);
    const FrozenHandles frozen(*model_, i, /*freeze=*/!run.parameter_gradients);
    const std::shared_ptr<DeferredGradients> deferred = block.deferred;
    const InPhase defers(deferred == nullptr ? "backward" : kDeferringPhase);
    const auto& units = deferred == nullptr ? trained_units(run, i) : no_units();
    for (size_t unit : units) gradients_->before_backward(unit);
    prefetch_after(i, first - 1, -1);
    if (!block.output.defined()) {
      run.context.deferred_gradients = deferred;
      block.output = call_block(run, i, block.input);
    }
    if (block.output.requires_grad()) {
      check(gradient.defined(), ErrorCode::kInvalidArgument, "block ", i + 1,
            " gave no gradient to its input; its output must depend on it");
      const ScopedGradientRedirect aside(*model_->blocks[i], deferred.get());
      gradient = block_backward(block.output, gradient, block.input);
    } else {
      gradient.reset();
    }
    block = {.deferred = deferred};
    release_block(i);
    for (size_t unit : units) gradients_->after_backward(unit, run.last_micro_batch);
    if (run.weights_at_once) make_deferred(run, i);
  }
  run.gradient = gradient;
}

void ShardingStrategy::backward_weights(MicroBatchRun& run) {
  const TraceRange range("weight gradients");
  const PhaseScope phase(Phase::kBackward);
  const InPhase named("backward");
  for (size_t i = run.first_block + run.block_count; i-- > run.first_block;) make_deferred(run, i);
}

void ShardingStrategy::make_deferred(MicroBatchRun& run, size_t index) {
  MicroBatchRun::BlockRun& block = run.blocks[index - run.first_block];
  if (block.deferred == nullptr) return;
  const at::NoGradGuard no_grad;
  const ForTensor of(model_->names[index]);
  for (size_t unit : trained_units(run, index)) gradients_->before_backward(unit);
  std::exchange(block.deferred, nullptr)->run();
  for (size_t unit : trained_units(run, index)) {
    gradients_->after_backward(unit, run.last_micro_batch);
  }
}

StepResult ShardingStrategy::finish() {
  at::NoGradGuard no_grad;
  const at::Tensor sums = step_->sums;
  const InPhase phase(step_->with_gradients ? "reduce" : "evaluation");
  const ForTensor of("loss");
  if (sums.defined()) step_->sums_work = data().all_reduce(sums);
  if (step_->with_gradients) {
    gradients_->finish();
    replicated_reducer_->finish();
  }
  agreement_->check_agreement();
  step_->sums_work.wait();
  step_->micro_batches.clear();
  if (step_->with_gradients) {
    steps_begun_.add_(1);
    settle_targets();
  }
  agreement_->end();
  const at::Tensor targets = agreement_->targets();
  StepResult result{.target_count = targets.to(at::kFloat),
                    .sample_count = agreement_->samples(),
                    .token_count = agreement_->tokens()};
  if (!sums.defined()) return result;
  at::Tensor divisor = targets.clamp_min(1);
  const int64_t before = gives_divisor() ? 2 : 1;  // number of elements before the counters
  if (before == 2) {
    result.target_count = sums[1].to(at::kFloat);
    divisor = at::where(sums[1].eq(0), 1, sums[1]);
    divide_by(result.target_count);  // rounded like the values that other stages get
  }
  result.loss = (sums[0] / divisor).to(at::kFloat);
  result.counters = sums.narrow(0, before, sums.numel() - before).to(at::kFloat);
  return result;
}

bool ShardingStrategy::gives_divisor() const {
  return model_->has_loss && model_->blocks.back()->gives_divisor();
}

// Replaces the target count, with which backward began before all micro-batches had returned their
// divisors.
void ShardingStrategy::divide_by(const at::Tensor& divisor) {
  if (step_->with_gradients) settle_divisor(divisor);
}

void ShardingStrategy::drop_call() {
  const at::NoGradGuard no_grad;
  agreement_->wait();
  gradients_->drop_step();
  if (graphs_ != nullptr) graphs_->clear();
  replicated_reducer_->drop_step();
  step_->sums_work.wait();
  wire_->settle_all();
  parameters_->drop_uses();
  synchronize_device(data().device());
  room_->drop_step();
  *step_ = {};
  agreement_->drop();
}

}  // namespace tessera
