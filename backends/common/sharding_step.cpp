// SPDX-License-Identifier: MIT
// Begin and end of a ShardingStrategy's step or evaluation.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "backends/common/activation_offload.h"
#include "backends/common/allocator_reserve.h"
#include "backends/common/attached_model.h"
#include "backends/common/block_runner.h"
#include "backends/common/cut_rows.h"
#include "backends/common/gradient_scale.h"
#include "backends/common/process_groups.h"
#include "backends/common/replicated_gradient_reducer.h"
#include "backends/common/step_agreement.h"
#include "backends/common/step_graph_runner.h"
#include "lib/comm/operation_scope.h"
#include "lib/core/gradient_columns.h"
#include "lib/ops/fp8.h"
#include "tessera/backends/sharding_strategy.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"

namespace tessera {
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
  const size_t first = static_cast<size_t>(ranks_->data_rank) * step_->micro_batches.size();
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
  // Where weights stay, several micro-batches share their copies.
  const bool stay = !rules_.gathers_parameters || rules_.keeps_gathered;
  const bool shares = with_gradients && stay && step_->micro_batches.size() > 1;
  step_->fp8_weights.reset();
  const bool by_codes = with_gradients && step_->codes != nullptr;
  if ((shares || by_codes) && config_.precision.fp8 != Fp8::kOff) {
    step_->fp8_weights = std::make_shared<ops::Fp8Weights>(step_->codes, /*keeps=*/shares);
  }
  if (with_gradients) {
    if (activations_ != nullptr) activations_->begin_step();
    scale_->begin(adds);
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
  context.recompute_experts = step_->with_gradients && config_.recomputes_experts();
  if (step_->with_gradients) {
    context.fp8 = config_.precision.fp8;
    context.fp8_layers = fp8_layers_of(config_.precision.fp8_layers);
    context.fp8_weights = step_->fp8_weights;
    context.gradient_columns = std::make_shared<GradientColumns>();
    context.deferred_rows = gradients_->deferred_rows();
  }
  context.data_axis = &data();
  context.expert_tokens = agreement_->expert_tokens(index);
  if (Communicator* const axis = ranks_->context(); axis != nullptr) {
    CutMicroBatch cut = cut_rows(run.micro_batch, *axis, config_.context_attention);
    run.micro_batch = std::move(cut.micro_batch);
    context.cut_rows = std::move(cut.rows);
  }
  run.first_block = first_block;
  run.block_count = block_count;
  run.with_gradients = step_->with_gradients;
  run.with_scores = step_->with_scores;
  run.last_micro_batch = index + 1 == step_->micro_batches.size();
  return run;
}

void ShardingStrategy::forward(MicroBatchRun& run) { blocks_->forward(run); }
void ShardingStrategy::backward(MicroBatchRun& run) { blocks_->backward(run); }
void ShardingStrategy::backward_weights(MicroBatchRun& run) { blocks_->backward_weights(run); }

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
  step_->fp8_weights.reset();
  if (step_->with_gradients) {
    steps_begun_.add_(1);
    scale_->settle_targets();
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
  if (step_->with_gradients) scale_->settle(divisor);
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
  if (activations_ != nullptr) activations_->drop();
  room_->drop_step();
  *step_ = {.codes = step_->codes};
  agreement_->drop();
}

}  // namespace tessera
