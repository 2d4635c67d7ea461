// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// How a model is spread over ranks. The model, the data and the training loop are the same under
/// every strategy, and so are the numbers.
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

/// Device tensors; read them late. Sums are over all micro-batches and all ranks.
struct StepResult {
  at::Tensor loss;  ///< fp32 scalar: loss sum / target count (0 when nothing was supervised)
  /// fp32 scalar; what the loss gives in its place (Block::gives_divisor)
  at::Tensor target_count;
  /// int64 scalars: rows and positions, as the micro-batches say (MicroBatch).
  at::Tensor sample_count, token_count;
  /// fp32 [k-1]: the last block's further elements, summed; empty when it has none.
  at::Tensor counters;
};

/// Bytes this rank holds, by what they are for. Counted from the tensors themselves.
struct StrategyMemory {
  int64_t parameter_bytes = 0;  ///< parameters in compute dtype, full or sharded, persistent
  int64_t gradient_bytes = 0;   ///< persistent gradients, full or sharded
  int64_t optimizer_bytes = 0;  ///< master weights and moments
  int64_t buffer_bytes = 0;     ///< parameters and gradients of the blocks in flight, staging
  /// The four above are on the device; offloaded state lives in host memory (pinned included).
  int64_t host_bytes = 0;
  int64_t host_state_bytes = 0;  ///< of host_bytes: masters and moments, which every step changes
  int64_t pinned_bytes = 0;      ///< of host_bytes: page-locked
};

/// How the last offloaded step went; zeros when nothing is offloaded.
struct OffloadReport {
  int64_t bytes_to_host = 0, bytes_to_device = 0;             ///< over the link, this rank, a step
  double to_host_bytes_per_s = 0, to_device_bytes_per_s = 0;  ///< while something was being copied
  double update_elements_per_s = 0;  ///< of the optimizer on the host's cores
  double step_s = 0;  ///< from the step's scalars being known to the last unit's update
  double hidden = 0;  ///< share of step_s that computation did not wait for
};

/// A parameter in full on its way to a visitor; valid during the call.
struct VisitedParameter {
  const std::string& block;  ///< the block's name
  const std::string& name;   ///< the parameter's name inside the block
  /// fp32, on the rank's device: the master copy in 16-bit training; of frozen parameters what
  /// forward reads.
  const at::Tensor& value;
  const Placement& placement;  ///< here; of another stage's: as it is there, no communicators
};
/// Called for one parameter after the other, on every rank in the same order.
using ParameterVisitor = std::function<void(const VisitedParameter&)>;

/// What to keep of the scores of the micro-batch at this place. Runs without gradients on every
/// rank that has the scores, which all must return the same.
using ScoreSelection = std::function<at::Tensor(const at::Tensor& scores, size_t index)>;

/// How a call of forward_backward() stands to those before it.
struct BackwardOptions {
  /// The gradient is added to what the calls since the last optimizer_step() left, which without it
  /// are refused. All calls together have the gradient of
  ///   loss scale * (sum of the losses of all calls) / (sum of their target counts),
  /// as one call that is given all their micro-batches. StepResult is of the call alone: the loss
  /// of all is the mean of StepResult::loss weighted with StepResult::target_count. Every call
  /// reduces; no memory is needed beyond that of one.
  bool accumulate = false;
};

/// How Strategy::forward() runs.
struct ForwardOptions {
  bool training = true;  ///< the modules' mode: dropout, running statistics
  /// false: backward gives the gradients of inputs alone, as through a GAN's discriminator in the
  /// generator's step.
  bool parameter_gradients = true;
};

/// Used by one thread per rank; every call is collective. Verbs per optimizer step, so that a
/// pipeline fits. A step, evaluation or prediction that an exception leaves on all ranks at the
/// same place counts as not made; behind any other every call throws Error(kUnavailable).
class Strategy {
 public:
  virtual ~Strategy() = default;
  virtual std::string name() const = 0;  ///< what messages call it, as "zero3" or "zero1+1f1b"

  /// Once: builds what this rank owns. All validation happens here, before the first collective,
  /// from values equal on all ranks.
  virtual void attach(const ModelSpec& model, const BuildContext& context,
                      const OptimizerFactory& optimizer) = 0;
  /// Device scalar that multiplies the loss before backward (fp16); the tensor is read at every
  /// step. Undefined: 1.
  virtual void set_loss_scale(const at::Tensor& scale) = 0;

  /// Runs all micro-batches of one optimizer step; on return the gradients are reduced: the
  /// gradient of (loss scale * loss sum / target count), where sum and count run over all
  /// micro-batches of all ranks. Throws Error(kInvalidArgument) where no optimizer_step() has used
  /// the last gradient, unless options say what becomes of it.
  virtual StepResult forward_backward(std::span<const MicroBatch> micro_batches,
                                      const BackwardOptions& options = {}) = 0;
  /// The same sums without gradients, with the modules in evaluation mode.
  virtual StepResult evaluate(std::span<const MicroBatch> micro_batches) = 0;
  /// What a rank has no more data for.
  enum class Pass { kTraining, kEvaluation };
  /// What a rank calls instead of the next forward_backward() or evaluate() when it has no more
  /// data, after `done` of them; the Trainer does. Nothing happens where that is so on all ranks.
  /// Where it is not, all throw Error(kDataLoss), which names the ranks whose data have ended:
  /// those that go on from the call they make.
  virtual void end_of_data(Pass, int64_t /*done*/) {}

  /// The scores that the last block (a Head) gives for each micro-batch, or what select makes of
  /// them at once; labels are not looked at. A rank gets those of its own micro-batches, also where
  /// the last block is on another stage. Throws Error(kInvalidArgument) when the last block has no
  /// scores. Micro-batches of which any has so_far.lengths take one more token a row: then ranks
  /// are not asked whether they do the same, and the shape of what select returns follows from the
  /// input's.
  virtual std::vector<at::Tensor> predict(std::span<const MicroBatch>,
                                          const ScoreSelection& /*select*/ = {}) {
    fail(ErrorCode::kInvalidArgument, "strategy ", name(),
         " gives no scores (Strategy::predict), so it can neither predict nor generate");
  }
  /// The model as a differentiable function, for loops that a loss over labels cannot say (GANs,
  /// distillation, policies): the scores of the last block (Head::logits; of from_module(), chain()
  /// and their kin the output before the loss, of from_callable() what its `scores` return) for
  /// this rank's micro-batch; labels are not looked at. Under NoGradGuard the result is a plain
  /// tensor. Else backward() through it
  ///   adds to the gradients of parameters, unless options say otherwise. Of each rank's loss they
  ///   get 1 / data ranks, as under torch's DistributedDataParallel: losses that are means over
  ///   equally many rows give that of the mean over all rows. Several forward() passes before one
  ///   optimizer_step() add up as in plain LibTorch. set_loss_scale() does not apply: scale the
  ///   loss. The sum over ranks is made by the next call that needs it; gives the gradients of
  ///   input_ids and of the tensors in extra that require one, so that models follow each other:
  ///   critic.forward(make_micro_batch(generator.forward(noise), {})).
  /// Between forward() and its backward() no weight may change. All ranks make the same calls and
  /// the same backward passes in the same order. Passes of forward() and forward_backward() do not
  /// mix in one step. Throws Error(kInvalidArgument) where the last block has no scores, under a
  /// pipeline, for a second backward() through one pass, and for backward() with create_graph: a
  /// gradient penalty is formed inside a block, by torch::autograd::grad in a step of
  /// from_callable().
  virtual at::Tensor forward(const MicroBatch&, const ForwardOptions& = {}) {
    fail(ErrorCode::kInvalidArgument, "strategy ", name(),
         " has no forward() that can be differentiated; give the loss to forward_backward()");
  }

  /// Whether all blocks of this rank take rows piece by piece (Block::continues_rows).
  virtual bool continues_rows() const { return false; }

  /// Throws Error(kUnavailable) where the ranks cannot talk any more. On a GPU the results of calls
  /// before are then of no meaning: ask when they were read, and before they are used.
  virtual void require_connected() const {}

  /// Sum of squares of the whole model's gradient, over every axis; fp32 device scalar. Loss-scaled
  /// like the gradients.
  virtual at::Tensor grad_norm_squared() = 0;
  /// Multiplies the gradients by a device scalar; folded into the next optimizer_step.
  virtual void scale_gradients(const at::Tensor& factor) = 0;
  /// What this rank owns of the gradient, piece by piece and by name: to read, and to change in
  /// place; the step uses what is there then. With scale_gradients() already applied; loss-scaled
  /// like all gradients. Frozen parameters have none, tied ones are visited at each holder. Each
  /// rank visits its own pieces, so visitors make no collective calls.
  virtual void for_each_gradient(const GradientVisitor&) {
    fail(ErrorCode::kInvalidArgument, "strategy ", name(),
         " does not give its gradients by name (Strategy::for_each_gradient)");
  }
  /// The norm of every trained parameter's whole gradient by "block.parameter", over all ranks:
  /// fp32 device scalars, in the same order on every rank; tied parameters once, at their owner.
  /// The roots of their squares' sum is that of grad_norm_squared().
  virtual NamedTensors gradient_norms() {
    fail(ErrorCode::kInvalidArgument, "strategy ", name(),
         " does not give norms by name (Strategy::gradient_norms)");
  }
  /// One update. skip: fp32 device scalar, non-zero leaves parameters, moments and step count
  /// unchanged; undefined: 0. Throws Error(kInvalidArgument) without a gradient, and for a rate
  /// that is negative, infinite or NaN. A parameter that no micro-batch used has the gradient 0: it
  /// decays, and moves on by its momentum. Rate, skip, factors of scale_gradients() and loss scale
  /// must be equal on all ranks: the next step, evaluation or prediction throws
  /// Error(kInvalidArgument) where they were not, and no call after it goes on.
  virtual void optimizer_step(double learning_rate, const at::Tensor& skip = {}) = 0;

  /// Every parameter in full, block by block, the same on every rank; at most one block is
  /// materialised at a time. Tied parameters are visited once, at their owner.
  virtual void visit_parameters(const ParameterVisitor& visitor) = 0;
  /// This rank's gradient of every parameter in full (gathered), for tests; frozen ones have none.
  virtual void visit_gradients(const ParameterVisitor& visitor) = 0;

  /// The buffers of every block, the same on every rank; floating ones as they are.
  virtual void visit_buffers(const ParameterVisitor&) {}

  /// Peers that wait for this rank get `why`, and every later call of this strategy says it: for a
  /// failure of the user's own on one rank, which no other rank could know of.
  virtual void give_up(const std::string& /*why*/) {}

  /// This rank's part of all that later steps depend on; the pieces of all ranks together are the
  /// model's and its optimizer's state. First finishes the step under way. Later calls give the
  /// same memory. Throws Error(kInvalidArgument) where a strategy does not say it.
  virtual std::vector<StateTensor> state() {
    fail(ErrorCode::kInvalidArgument, "strategy ", name(),
         " does not say its state (Strategy::state), so it cannot be saved or resumed");
  }
  /// Values were written into what state() gave, on all ranks: the next step goes on from them.
  virtual void state_restored() {
    fail(ErrorCode::kInvalidArgument, "strategy ", name(), " does not take a state");
  }

  virtual StrategyMemory memory() const = 0;  ///< bytes by category, after attach()
  /// Finishes the step under way first.
  virtual OffloadReport offload_report() { return {}; }
  /// By this rank over communicators of the strategy's own; those of the mesh count for themselves.
  virtual int64_t extra_bytes_sent() const { return 0; }
  virtual int64_t parameter_count() const = 0;  ///< of the whole model; tied parameters once
};

}  // namespace tessera
