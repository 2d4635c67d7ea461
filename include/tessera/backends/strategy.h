// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Strategy: how a model is spread over ranks. Model, data, training loop and numbers are the same
/// under every strategy.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tessera/backends/gradients.h"
#include "tessera/checkpoint/state.h"
#include "tessera/core/error.h"
#include "tessera/model/model_spec.h"
#include "tessera/optim/optimizer.h"

namespace tessera {

/// Results of a step as device tensors, summed over all micro-batches and ranks; read them late.
struct StepResult {
  at::Tensor loss;  ///< fp32 scalar: loss sum / target count (0 when nothing was supervised)
  /// fp32 scalar; the loss's own divisor if it gives one (Block::gives_divisor)
  at::Tensor target_count;
  /// int64 scalars: rows and positions, as MicroBatch counts them.
  at::Tensor sample_count, token_count;
  /// fp32 [k-1]: further elements of the last block's output, summed; empty when it has none.
  at::Tensor counters;
};

/// Bytes of this rank's tensors, by category.
struct StrategyMemory {
  int64_t parameter_bytes = 0;  ///< parameters in compute dtype, full or sharded, persistent
  int64_t gradient_bytes = 0;   ///< persistent gradients, full or sharded
  int64_t optimizer_bytes = 0;  ///< master weights and moments
  int64_t buffer_bytes = 0;     ///< parameters and gradients of the blocks in flight, staging
  /// Offloaded state in host memory, pinned included; the four above are on the device.
  int64_t host_bytes = 0;
  /// Part of host_bytes: masters and moments, which every step changes.
  int64_t host_state_bytes = 0;
  int64_t pinned_bytes = 0;  ///< part of host_bytes: page-locked
  /// Part of host_bytes: buffers of offloaded activations, made as steps need them.
  int64_t host_activation_bytes = 0;
};

/// Transfers and times of the last offloaded step; zeros when nothing is offloaded.
struct OffloadReport {
  int64_t bytes_to_host = 0, bytes_to_device = 0;  ///< over the link, this rank, per step
  int64_t activation_bytes = 0;                    ///< part of both: activations
  double to_host_bytes_per_s = 0, to_device_bytes_per_s = 0;  ///< while a copy was running
  double update_elements_per_s = 0;                           ///< optimizer on the host's cores
  double step_s = 0;  ///< from the step's scalars being known to the last unit's update
  double hidden = 0;  ///< share of step_s that computation did not wait for
};

/// An unsharded parameter passed to a visitor; valid during the call.
struct VisitedParameter {
  const std::string& block;  ///< the block's name
  const std::string& name;   ///< the parameter's name inside the block
  /// fp32, on the rank's device: the master weights in 16-bit training; for frozen parameters the
  /// values that forward reads.
  const at::Tensor& value;
  /// On this rank; for another stage's parameter: that stage's, without communicators.
  const Placement& placement;
};
/// Called for each parameter, in the same order on every rank.
using ParameterVisitor = std::function<void(const VisitedParameter&)>;

/// The part of the scores to keep, for micro-batch `index`. Runs without gradients on every rank
/// that has the scores; all must return the same.
using ScoreSelection = std::function<at::Tensor(const at::Tensor& scores, size_t index)>;

/// Relation of a forward_backward() call to earlier ones.
struct BackwardOptions {
  /// Adds to the gradient of the calls since the last optimizer_step(); without it a second call is
  /// refused. All calls together have the gradient of
  ///   loss scale * (sum of the losses of all calls) / (sum of their target counts),
  /// like one call with all their micro-batches. StepResult is the call's own: the total loss is
  /// the mean of StepResult::loss weighted by StepResult::target_count. Every call reduces; memory
  /// is that of one call.
  bool accumulate = false;
};

/// Modes of Strategy::forward().
struct ForwardOptions {
  bool training = true;  ///< the modules' mode: dropout, running statistics
  /// false: backward computes gradients of the inputs alone, as through a GAN's discriminator in
  /// the generator's step.
  bool parameter_gradients = true;
};

/// Interface of all strategies: calls per optimizer step, so that pipelines fit. One thread per
/// rank; every call is collective. A step, evaluation or prediction in which all ranks throw at the
/// same place counts as not made. After any other exception every call throws Error(kUnavailable).
class Strategy {
 public:
  virtual ~Strategy() = default;
  virtual std::string name() const = 0;  ///< name in messages, as "zero3" or "zero1+1f1b"

  /// Builds this rank's part of the model; called once. Validates everything before the first
  /// collective, from values equal on all ranks.
  virtual void attach(const ModelSpec& model, const BuildContext& context,
                      const OptimizerFactory& optimizer) = 0;
  /// Sets the device scalar that multiplies the loss before backward (fp16), read at every step.
  /// Undefined: 1.
  virtual void set_loss_scale(const at::Tensor& scale) = 0;

  /// Runs all micro-batches of one optimizer step; on return the gradients are reduced. They are
  /// those of (loss scale * loss sum / target count), with sum and count over all micro-batches of
  /// all ranks. Throws Error(kInvalidArgument) when the last gradient was not used by
  /// optimizer_step(), unless options accumulate.
  virtual StepResult forward_backward(std::span<const MicroBatch> micro_batches,
                                      const BackwardOptions& options = {}) = 0;
  /// The sums of forward_backward() without gradients, modules in evaluation mode.
  virtual StepResult evaluate(std::span<const MicroBatch> micro_batches) = 0;
  /// The loop whose data have ended.
  enum class Pass { kTraining, kEvaluation };
  /// Called in place of the next forward_backward() or evaluate() by a rank without further data,
  /// after `done` calls; Trainer does so. No effect when all ranks call it. Otherwise all ranks
  /// throw Error(kDataLoss), which names the ranks whose data have ended; ranks that go on throw in
  /// their own call.
  virtual void end_of_data(Pass, int64_t /*done*/) {}

  /// Scores of the last block (a Head) for each micro-batch, reduced by select if given; labels are
  /// ignored. A rank gets those of its own micro-batches, from the last stage if need be. Throws
  /// Error(kInvalidArgument) when the last block has no scores. With decode_state.lengths in any
  /// micro-batch every row takes one more token: agreement of ranks is not checked, and select's
  /// result must have a shape that follows from its input's.
  virtual std::vector<at::Tensor> predict(std::span<const MicroBatch>,
                                          const ScoreSelection& /*select*/ = {}) {
    fail(ErrorCode::kInvalidArgument, "strategy ", name(),
         " gives no scores (Strategy::predict), so it can neither predict nor generate");
  }
  /// The model as a differentiable function, for losses beyond labels (GANs, distillation,
  /// policies). Returns the last block's scores for this rank's micro-batch; labels are ignored.
  /// Scores are Head::logits, the output before the loss of from_module(), chain() and similar
  /// adapters, or the result of `scores` of from_callable(). Under NoGradGuard the result is a
  /// plain tensor. Otherwise backward() through it
  ///   adds to the gradients of parameters, unless options say otherwise. Each rank's loss has
  ///   weight 1 / data ranks, as under torch's DistributedDataParallel: means over equally many
  ///   rows give the gradient of the mean over all rows. Several forward() passes before one
  ///   optimizer_step() add up as in plain LibTorch. set_loss_scale() does not apply: scale the
  ///   loss. The next call that needs it sums over ranks. backward() also computes gradients of
  ///   input_ids and of tensors in extra that require one, so models compose:
  ///   critic.forward(make_micro_batch(generator.forward(noise), {})).
  /// No weight may change between forward() and its backward(). All ranks make the same calls and
  /// backward passes in the same order. One step uses forward() or forward_backward(), not both.
  /// Throws Error(kInvalidArgument) when the last block has no scores, under a pipeline, for a
  /// second backward() through one pass, and for create_graph. Compute a gradient penalty inside a
  /// block, by torch::autograd::grad in a step of from_callable().
  virtual at::Tensor forward(const MicroBatch&, const ForwardOptions& = {}) {
    fail(ErrorCode::kInvalidArgument, "strategy ", name(),
         " has no forward() that can be differentiated; give the loss to forward_backward()");
  }

  /// Whether all blocks of this rank accept rows piece by piece (Block::supports_kv_cache).
  virtual bool supports_kv_cache() const { return false; }

  /// Throws Error(kUnavailable) when communication between the ranks has failed. Results of earlier
  /// calls on a GPU are then meaningless: call it after reading them and before using them.
  virtual void require_connected() const {}

  /// Squared norm of the whole model's gradient, over every axis; fp32 device scalar. Loss-scaled
  /// like the gradients.
  virtual at::Tensor grad_norm_squared() = 0;
  /// Multiplies the gradients by a device scalar; folded into the next optimizer_step().
  virtual void scale_gradients(const at::Tensor& factor) = 0;
  /// Visits this rank's pieces of the gradient by name, to read or change in place before the step.
  /// scale_gradients() is already applied; loss-scaled like all gradients. Frozen parameters have
  /// none; tied ones are visited on each rank that holds them. Pieces differ between ranks, so
  /// visitors make no collective calls.
  virtual void for_each_gradient(const GradientVisitor&) {
    fail(ErrorCode::kInvalidArgument, "strategy ", name(),
         " does not give its gradients by name (Strategy::for_each_gradient)");
  }
  /// The norm of every trained parameter's whole gradient by "block.parameter", over all ranks:
  /// fp32 device scalars, in the same order on every rank; tied parameters once, at their owner.
  /// Their squares add up to grad_norm_squared().
  virtual NamedTensors gradient_norms() {
    fail(ErrorCode::kInvalidArgument, "strategy ", name(),
         " does not give norms by name (Strategy::gradient_norms)");
  }
  /// One optimizer update. skip: fp32 device scalar; non-zero leaves parameters, moments and step
  /// count unchanged; undefined: 0. Throws Error(kInvalidArgument) without a gradient, and for a
  /// rate that is negative, infinite or NaN. A parameter that no micro-batch used has gradient 0:
  /// weight decay and momentum still apply. Rate, skip, factors of scale_gradients() and loss scale
  /// must be equal on all ranks; otherwise the next step, evaluation or prediction throws
  /// Error(kInvalidArgument), and so does every later call.
  virtual void optimizer_step(double learning_rate, const at::Tensor& skip = {}) = 0;

  /// Visits every parameter, unsharded, block by block, with the same values on every rank. At most
  /// one block is gathered at a time. Tied parameters are visited once, at their owner.
  virtual void visit_parameters(const ParameterVisitor& visitor) = 0;
  /// Visits this rank's gradient of every parameter, gathered, for tests; frozen ones have none.
  virtual void visit_gradients(const ParameterVisitor& visitor) = 0;

  /// Visits the buffers of every block, the same on every rank, in their own dtypes.
  virtual void visit_buffers(const ParameterVisitor&) {}

  /// Fails the step on all ranks for an error that only this rank knows. Peers that wait for this
  /// rank throw with `why`, and so does every later call of this strategy.
  virtual void give_up(const std::string& /*why*/) {}

  /// This rank's pieces of everything later steps depend on; all ranks' pieces are the state of
  /// model and optimizer. Finishes the step in progress first. Later calls return the same memory.
  /// Throws Error(kInvalidArgument) in a strategy that does not support it.
  virtual std::vector<StateTensor> state() {
    fail(ErrorCode::kInvalidArgument, "strategy ", name(),
         " does not say its state (Strategy::state), so it cannot be saved or resumed");
  }
  /// Called on all ranks after writing into the tensors of state(): the next step uses them.
  virtual void state_restored() {
    fail(ErrorCode::kInvalidArgument, "strategy ", name(), " does not take a state");
  }

  virtual StrategyMemory memory() const = 0;  ///< bytes by category, after attach()
  /// Transfers of the last offloaded step. Finishes the step in progress first.
  virtual OffloadReport offload_report() { return {}; }
  /// Bytes this rank sent over the strategy's own communicators; those of the mesh count their own.
  virtual int64_t extra_bytes_sent() const { return 0; }
  /// Elements of the whole model; tied parameters once.
  virtual int64_t parameter_count() const = 0;
};

}  // namespace tessera
