// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Training of a torch::nn module on all ranks of a job, for loops written for one process.
#include <concepts>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "tessera/backends/parallel_config.h"
#include "tessera/backends/strategy.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/model/adapters.h"

namespace tessera {

namespace detail {

template <typename Loss>
concept LossOfScores = std::copy_constructible<Loss> &&
    requires(Loss& loss, const at::Tensor& scores, const at::Tensor& labels) {
  { loss(scores, labels) } -> std::convertible_to<at::Tensor>;
};

}  // namespace detail

/// Options of one train_step().
struct TrainStep {
  std::optional<double> learning_rate = {};  ///< rate of the update; required, at least 0
  double max_grad_norm = 0;  ///< clip the gradient to this global norm; 0: no clipping
};

/// A module with a strategy over all ranks of the world. One thread per rank; every call is
/// collective.
class ParallelModule {
 public:
  /// Takes a module as from_module() does, and a mean loss: a holder such as
  /// torch::nn::CrossEntropyLoss, or any function of (scores, labels). Class weights are an error:
  /// see from_module(). The module itself does not change before copy_to(). The world outlives
  /// this. Throws like from_module(), make_strategy() and Strategy::attach().
  template <typename Module, typename Loss>
  ParallelModule(Communicator& world, const Module& module, Loss loss,
                 const OptimizerFactory& optimizer,
                 const ParallelConfig& config = {.strategy = "ddp"})
      : ParallelModule(world, model_of(module, std::move(loss)), optimizer, config) {}
  /// Takes any model for data-parallel ranks: from_callable(), custom blocks.
  ParallelModule(Communicator& world, const ModelSpec& model, const OptimizerFactory& optimizer,
                 const ParallelConfig& config = {.strategy = "ddp"});

  /// Forward, backward, gradient reduction and update. inputs and labels: this rank's rows, on any
  /// device; row counts may differ between ranks. Returns the mean loss over all ranks' rows before
  /// the update: fp32 device scalar, equal on every rank. Non-finite gradients reach the weights,
  /// as in a plain loop; a Trainer stops instead, and supports fp16 loss scaling.
  at::Tensor train_step(const at::Tensor& inputs, const at::Tensor& labels, const TrainStep& step);
  /// One step over several micro-batches.
  at::Tensor train_step(std::span<const MicroBatch> micro_batches, const TrainStep& step);
  /// Scores of this rank's rows, in eval mode without gradients.
  at::Tensor predict(const at::Tensor& inputs);
  /// Copies the trained weights, unsharded, into the module on every rank.
  void copy_to(torch::nn::Module& module);
  /// Copies the weights on one rank only, where it returns true:
  ///   if (!model.copy_to(net, 0)) return;
  bool copy_to(torch::nn::Module& module, int rank);
  ///@{
  /// copy_to() for a holder.
  template <typename Holder>
  requires requires(const Holder& holder) { holder.ptr(); }
  void copy_to(const Holder& module) { copy_to(*module.ptr()); }
  ///@}
  ///@{
  /// copy_to() for a holder.
  template <typename Holder>
  requires requires(const Holder& holder) { holder.ptr(); }
  bool copy_to(const Holder& module, int rank) { return copy_to(*module.ptr(), rank); }
  ///@}

  /// The strategy, e.g. for evaluation, gradients by name, checkpoints, or a Trainer.
  Strategy& strategy() { return *strategy_; }

 private:
  template <typename Module, typename Loss>
  static ModelSpec model_of(const Module& module, Loss loss) {
    static_assert(detail::LossOfScores<Loss>,
                  "ParallelModule: the loss must be callable with the module's output and the "
                  "labels, (const at::Tensor&, const at::Tensor&), and must return an at::Tensor; "
                  "for any other use from_callable(module, step)");
    if constexpr (detail::LossOfScores<Loss>) {
      return from_module(
          module,
          // A holder's call is not const.
          [loss](const at::Tensor& scores, const MicroBatch& batch) mutable -> at::Tensor {
            return loss(scores, batch.labels);
          },
          {.reduction = LossReduction::kMean});
    } else {
      return {};
    }
  }

  DeviceMesh mesh_;
  at::Device device_;
  std::unique_ptr<Strategy> strategy_;
};

}  // namespace tessera
