// SPDX-License-Identifier: MIT
#include "backends/common/block_runner.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <utility>

#include "backends/common/block_backward.h"
#include "backends/common/scoped_gradient_redirect.h"
#include "lib/comm/operation_scope.h"
#include "lib/core/kept_tensors.h"
#include "lib/core/trace.h"
#include "lib/ops/fp8.h"
#include "tessera/core/deferred_gradients.h"
#include "tessera/core/error.h"
#include "tessera/core/phase_clock.h"

namespace tessera {
namespace {

const std::vector<size_t>& no_units() {
  static const std::vector<size_t> none;
  return none;
}

// Scope in which a block's trained parameters need no gradient, for autograd and for hand-written
// blocks.
class FrozenHandles {
 public:
  FrozenHandles(const AttachedModel& model, size_t block, bool freeze) {
    if (!freeze) return;
    for (size_t unit : model.trained_units_of_block[block]) {
      for (const auto& handles : model.units[unit].handles) {
        for (const at::Tensor& handle : handles) handles_.push_back(handle);
      }
    }
    set(false);
  }
  ~FrozenHandles() { set(true); }
  FrozenHandles(const FrozenHandles&) = delete;
  FrozenHandles& operator=(const FrozenHandles&) = delete;

 private:
  void set(bool needs_gradient) const {
    for (const at::Tensor& handle : handles_) handle.set_requires_grad(needs_gradient);
  }
  std::vector<at::Tensor> handles_;
};

}  // namespace

// Whether the block reads the unit's values. Products in 8 bits take codes as they are; frozen ones
// are stored for all layers, trained ones gathered for those that multiply in 8 bits.
bool BlockRunner::decodes(const MicroBatchRun& run, size_t unit) const {
  const BlockContext& context = run.context;
  const bool by_codes = context.fp8 == Fp8::kTensorwise && context.fp8_weights != nullptr &&
                        context.fp8_weights->has_stored();
  return !by_codes || (parts_.model.units[unit].coded() && !context.fp8_layers.all());
}

void BlockRunner::acquire(const MicroBatchRun& run, size_t block) {
  for (size_t unit : parts_.model.units_with_block[block]) parts_.optimizer.complete(unit);
  for (size_t unit : parts_.model.units_of_block[block]) {
    parts_.parameters.acquire(unit, decodes(run, unit));
  }
}

// Starts the next gathers after this block's, towards block `end` (exclusive).
void BlockRunner::prefetch_after(const MicroBatchRun& run, size_t block, size_t end,
                                 int direction) {
  const std::vector<size_t>* seen = &parts_.model.messages_of_block[block];
  int left = parts_.config.prefetch_blocks;
  for (size_t next = block + direction; next != end && left > 0; next += direction) {
    // Blocks without parameters, or in messages already seen, need no gather.
    const std::vector<size_t>& messages = parts_.model.messages_of_block[next];
    if (std::ranges::includes(*seen, messages)) continue;
    seen = &messages;
    --left;
    for (size_t unit : parts_.model.units_with_block[next]) parts_.optimizer.complete(unit);
    for (size_t unit : parts_.model.units_of_block[next]) {
      parts_.parameters.prefetch(unit, decodes(run, unit));
    }
  }
}

void BlockRunner::release(size_t block) {
  for (size_t unit : parts_.model.units_of_block[block]) parts_.parameters.release(unit);
}

void BlockRunner::forward(MicroBatchRun& run) {
  const TraceRange range("forward");
  const PhaseScope phase(Phase::kForward);
  const InPhase named(parts_.step.phase());
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
    const ForTensor of(parts_.model.names[i]);
    acquire(run, i);
    prefetch_after(run, i, end, +1);
    if (is_loss(i) && !run.with_scores) {
      forward_loss(run, i, hidden);
      hidden.reset();
    } else {
      const FrozenHandles frozen(parts_.model, i, /*freeze=*/!run.parameter_gradients);
      hidden = forward_block(run, i, hidden);
    }
    release(i);
  }
  run.hidden = hidden.defined() ? hidden.detach() : hidden;
}

at::Tensor BlockRunner::forward_block(MicroBatchRun& run, size_t index, const at::Tensor& hidden) {
  const TraceRange range("block forward");
  if (!run.with_gradients) return call_block(run, index, hidden);
  MicroBatchRun::BlockRun& block = run.blocks[index - run.first_block];
  if (block.has_backward && recomputes(index)) return forward_recomputed(run, index);
  if (!block.has_backward) {
    const at::NoGradGuard no_grad;
    return call_block(run, index, block.input);
  }
  block.output = call_block(run, index, block.input);
  return block.output;
}

at::Tensor BlockRunner::forward_recomputed(MicroBatchRun& run, size_t index) {
  const at::NoGradGuard no_grad;
  MicroBatchRun::BlockRun& block = run.blocks[index - run.first_block];
  if (parts_.config.saves_attention_outputs()) block.kept = std::make_shared<KeptTensors>();
  const at::Tensor input = block.input;
  const bool leaves = parts_.offload != nullptr && !comes_back_first(run, index);
  if (leaves) send_input(run, index);
  const size_t settled = leaves ? parts_.offload->in_flight() : 0;
  run.context.will_recompute = true;
  run.context.kept_tensors = block.kept;
  const at::Tensor output = call_block(run, index, input);
  run.context.will_recompute = false;
  run.context.kept_tensors = nullptr;
  if (leaves) send_kept(run, index, settled);
  return output;
}

void BlockRunner::recompute(MicroBatchRun& run, size_t index) {
  MicroBatchRun::BlockRun& block = run.blocks[index - run.first_block];
  run.context.deferred_gradients = block.deferred;
  run.context.recomputes = true;
  run.context.kept_tensors = std::exchange(block.kept, nullptr);
  block.output = call_block(run, index, block.input);
  run.context.recomputes = false;
  run.context.kept_tensors = nullptr;
}

// Whether backward begins with this block's activations, right after forward.
bool BlockRunner::comes_back_first(const MicroBatchRun& run, size_t index) const {
  if (!run.backward_follows) return false;
  for (size_t next = index + 1; next < run.first_block + run.block_count; ++next) {
    if (!is_loss(next) && recomputes(next)) return false;
  }
  return true;
}

void BlockRunner::send_input(MicroBatchRun& run, size_t index) {
  MicroBatchRun::BlockRun& block = run.blocks[index - run.first_block];
  block.offloaded = parts_.offload->make();
  // The output of a block that is not recomputed stays on the device anyway.
  const bool stays =
      index > run.first_block && run.blocks[index - 1 - run.first_block].output.defined();
  if (stays || !ActivationOffload::is_movable(block.input)) return;
  parts_.offload->send(*block.offloaded, /*place=*/0, block.input);
  block.input.reset();
}

void BlockRunner::send_kept(MicroBatchRun& run, size_t index, size_t settled) {
  MicroBatchRun::BlockRun& block = run.blocks[index - run.first_block];
  const std::vector<at::Tensor*> kept = block.kept->tensors();
  for (size_t k = 0; k < kept.size(); ++k) {
    if (!ActivationOffload::is_movable(*kept[k])) continue;
    parts_.offload->send(*block.offloaded, /*place=*/k + 1, *kept[k]);
    kept[k]->reset();
  }
  parts_.offload->settle(settled);
}

void BlockRunner::bring_back(MicroBatchRun& run, size_t index) {
  MicroBatchRun::BlockRun& block = run.blocks[index - run.first_block];
  if (block.offloaded == nullptr) return;
  const std::vector<at::Tensor*> kept = block.kept->tensors();
  for (const auto& [place, tensor] : parts_.offload->take(*block.offloaded)) {
    (place == 0 ? block.input : *kept[place - 1]) = tensor;
  }
  block.offloaded.reset();
}

void BlockRunner::fetch_before(MicroBatchRun& run, size_t index) {
  if (index == run.first_block) return;
  const auto& offloaded = run.blocks[index - 1 - run.first_block].offloaded;
  if (offloaded != nullptr) parts_.offload->fetch(*offloaded);
}

at::Tensor BlockRunner::call_block(const MicroBatchRun& run, size_t index,
                                   const at::Tensor& hidden) {
  if (run.with_scores && is_loss(index)) return forward_scores(run, hidden);
  const bool as_asked = !run.context.save_norm_outputs && !run.context.recompute_experts;
  if (as_asked || !recomputes(index)) {
    return parts_.model.blocks[index]->forward(hidden, run.micro_batch, run.context);
  }
  BlockContext whole = run.context;  // runs twice as a whole
  whole.save_norm_outputs = whole.recompute_experts = false;
  return parts_.model.blocks[index]->forward(hidden, run.micro_batch, whole);
}

bool BlockRunner::recomputes(size_t block) const {
  return parts_.config.gradient_checkpointing || parts_.model.recomputed[block];
}

// [Note: deferred weight gradients]
// Units are reduced when their gradients are complete, by collectives in the same order on all data
// ranks. So deferral depends only on what these ranks have in common, not on the micro-batch. All
// gradients of a unit are computed at one point of the schedule: blocks that share units defer
// nothing.
bool BlockRunner::defers(const MicroBatchRun& run, size_t index, const at::Tensor& input) const {
  if (!run.splits_backward || !input.defined() || !input.requires_grad() || is_loss(index)) {
    return false;
  }
  const auto alone = [&](size_t unit) { return parts_.model.units[unit].uses == 1; };
  return std::ranges::all_of(trained_units(run, index), alone) &&
         parts_.model.blocks[index]->defers_gradients(input, run.context);
}

bool BlockRunner::is_loss(size_t block) const {
  return parts_.model.has_loss && block + 1 == parts_.model.blocks.size();
}

const std::vector<size_t>& BlockRunner::trained_units(const MicroBatchRun& run,
                                                      size_t block) const {
  return run.parameter_gradients ? parts_.model.trained_units_of_block[block] : no_units();
}

// The loss may accumulate gradients in forward, and its backward follows at once, so its scores and
// parameters are needed only once under any schedule.
void BlockRunner::forward_loss(MicroBatchRun& run, size_t index, const at::Tensor& hidden) {
  const TraceRange range("loss");
  const auto& units = parts_.model.trained_units_of_block[index];
  const at::Tensor input =
      run.with_gradients ? std::exchange(run.blocks[index - run.first_block].input, {}) : hidden;
  if (run.with_gradients) {
    for (size_t unit : units) parts_.gradients.before_backward(unit);
    run.context.loss_gradient = parts_.loss_gradient();
  }
  const at::Tensor output =
      parts_.model.blocks[index]->forward(input, run.micro_batch, run.context);
  check(output.defined() && output.dim() <= 1 && output.numel() >= 1, ErrorCode::kInvalidArgument,
        "the last block must return a 1-D tensor whose first element is the loss sum, but it "
        "returned ",
        output.defined() ? concat("shape ", output.sizes()) : std::string("nothing"));
  const at::Tensor sums = output.detach().reshape({-1}).to(at::kDouble);
  parts_.step.sums = parts_.step.sums.defined() ? parts_.step.sums + sums : sums.clone();
  if (!run.with_gradients) return;
  if (output.requires_grad()) {
    const PhaseScope phase(Phase::kBackward);
    const InPhase named("backward");
    const at::Tensor loss = output.reshape({-1}).select(0, 0);
    torch::autograd::backward({loss}, {run.context.loss_gradient.to(loss.scalar_type())});
  }
  run.gradient = input.defined() ? input.grad() : at::Tensor();
  for (size_t unit : units) parts_.gradients.after_backward(unit, run.last_micro_batch);
}

void BlockRunner::backward(MicroBatchRun& run) {
  const TraceRange range("backward");
  const PhaseScope phase(Phase::kBackward);
  const InPhase named("backward");
  const at::AutoGradMode gradients(true);
  const bool after_loss = parts_.model.has_loss && !run.with_scores;  // its backward is done
  const size_t last = parts_.model.blocks.size() - (after_loss ? 1 : 0);
  at::Tensor gradient = std::exchange(run.gradient, {});
  const size_t end = run.first_block + run.block_count;
  if (parts_.offload != nullptr) parts_.offload->settle(parts_.offload->in_flight());
  size_t first = run.first_block;  // nothing before it is trained
  while (first < end && !run.blocks[first - run.first_block].has_backward) ++first;
  for (size_t i = std::min(end, last); i-- > first;) {
    const TraceRange block_range("block backward");
    const ForTensor of(parts_.model.names[i]);
    MicroBatchRun::BlockRun& block = run.blocks[i - run.first_block];
    acquire(run, i);
    bring_back(run, i);
    fetch_before(run, i);
    const FrozenHandles frozen(parts_.model, i, /*freeze=*/!run.parameter_gradients);
    const std::shared_ptr<DeferredGradients> deferred = block.deferred;
    const InPhase defers(deferred == nullptr ? "backward" : kDeferringPhase);
    const auto& units = deferred == nullptr ? trained_units(run, i) : no_units();
    for (size_t unit : units) parts_.gradients.before_backward(unit);
    prefetch_after(run, i, first - 1, -1);
    if (!block.output.defined()) recompute(run, i);
    if (block.output.requires_grad()) {
      check(gradient.defined(), ErrorCode::kInvalidArgument, "block ", i + 1,
            " gave no gradient to its input; its output must depend on it");
      const ScopedGradientRedirect aside(*parts_.model.blocks[i], deferred.get());
      gradient = block_backward(block.output, gradient, block.input);
    } else {
      gradient.reset();
    }
    block = {.deferred = deferred};
    release(i);
    for (size_t unit : units) parts_.gradients.after_backward(unit, run.last_micro_batch);
    if (run.weights_at_once) make_deferred(run, i);
  }
  run.gradient = gradient;
}

void BlockRunner::backward_weights(MicroBatchRun& run) {
  const TraceRange range("weight gradients");
  const PhaseScope phase(Phase::kBackward);
  const InPhase named("backward");
  for (size_t i = run.first_block + run.block_count; i-- > run.first_block;) make_deferred(run, i);
}

void BlockRunner::make_deferred(MicroBatchRun& run, size_t index) {
  MicroBatchRun::BlockRun& block = run.blocks[index - run.first_block];
  if (block.deferred == nullptr) return;
  const at::NoGradGuard no_grad;
  const ForTensor of(parts_.model.names[index]);
  for (size_t unit : trained_units(run, index)) parts_.gradients.before_backward(unit);
  std::exchange(block.deferred, nullptr)->run();
  for (size_t unit : trained_units(run, index)) {
    parts_.gradients.after_backward(unit, run.last_micro_batch);
  }
}

at::Tensor BlockRunner::forward_scores(const MicroBatchRun& run, const at::Tensor& hidden) {
  const TraceRange range("scores");
  auto* head = dynamic_cast<Head*>(parts_.model.blocks.back().get());
  check(head != nullptr, ErrorCode::kInvalidArgument, parts_.strategy, ": the last block (",
        parts_.model.names.back(),
        ") has no scores to predict with; derive it from tessera::Head and give its logits()");
  return head->logits(hidden, run.micro_batch, run.context);
}

}  // namespace tessera
