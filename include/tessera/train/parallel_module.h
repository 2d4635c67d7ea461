// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// A torch::nn module trained by all ranks of a job, for a loop that was written for one process.
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

/// The numbers of one train_step().
struct TrainStep {
  std::optional<double> learning_rate = {};  ///< rate of the update; must be given, at least 0
  double max_grad_norm = 0;  ///< clip the gradient to this global norm; 0: no clipping
};

/// Owns a strategy over all ranks of the world and the mesh beneath it. Used by one thread per
/// rank; every call is collective.
class ParallelModule {
 public:
  /// The module as from_module() takes it, and LibTorch's loss of it: a holder such as
  /// torch::nn::CrossEntropyLoss, or any function of (scores, labels), that returns the mean over
  /// the rows it is given. One of class weights is refused: see from_module(). The module itself
  /// stays as it is until copy_to(). The world outlives this. Throws what from_module(),
  /// make_strategy() and Strategy::attach() throw.
  template <typename Module, typename Loss>
  ParallelModule(Communicator& world, const Module& module, Loss loss,
                 const OptimizerFactory& optimizer,
                 const ParallelConfig& config = {.strategy = "ddp"})
      : ParallelModule(world, model_of(module, std::move(loss)), optimizer, config) {}
  /// Any model of data-parallel ranks: of several inputs (from_callable()), of blocks.
  ParallelModule(Communicator& world, const ModelSpec& model, const OptimizerFactory& optimizer,
                 const ParallelConfig& config = {.strategy = "ddp"});

  /// Forward, backward, the sum over ranks and the update. inputs and labels: this rank's rows, on
  /// any device; ranks may have different numbers of them. Returns the mean loss over the rows of
  /// all ranks before the update: fp32 device scalar, the same on every rank. Gradients that are
  /// not finite reach the weights, as in a plain loop: a Trainer stops there, and scales losses in
  /// fp16.
  at::Tensor train_step(const at::Tensor& inputs, const at::Tensor& labels, const TrainStep& step);
  /// The same for micro-batches: one step over all of them.
  at::Tensor train_step(std::span<const MicroBatch> micro_batches, const TrainStep& step);
  /// Scores of this rank's rows, in eval mode, without gradients.
  at::Tensor predict(const at::Tensor& inputs);
  /// The trained weights into the module, whole, on every rank.
  void copy_to(torch::nn::Module& module);
  /// On one rank alone, where it returns true; other ranks' modules stay as they are:
  ///   if (!model.copy_to(net, 0)) return;
  bool copy_to(torch::nn::Module& module, int rank);
  ///@{
  /// The same for a holder.
  template <typename Holder>
  requires requires(const Holder& holder) { holder.ptr(); }
  void copy_to(const Holder& module) { copy_to(*module.ptr()); }
  ///@}
  ///@{
  /// The same for a holder.
  template <typename Holder>
  requires requires(const Holder& holder) { holder.ptr(); }
  bool copy_to(const Holder& module, int rank) { return copy_to(*module.ptr(), rank); }
  ///@}

  /// For everything else: evaluation, gradients by name, checkpoints, a Trainer.
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
