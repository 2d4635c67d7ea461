// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Optimizers that must see all of a matrix to update any of it, such as Muon (muon.h), LAMB,
/// Adafactor or Shampoo, under every strategy. Each matrix has one owner among the ranks of the
/// data and tensor axes, which alone keeps its state; what is no such matrix goes to an optimizer
/// of elements:
///   strategy.attach(model, context, with_matrices(std::make_shared<Lamb>(), hidden_matrices(),
///                                                 make_adamw({})));
#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/optim/optimizer.h"

namespace tessera {

/// What the owner of a matrix knows in a step. Tensors are on the device, and valid during the
/// call.
struct MatrixStep {
  const std::string& name;  ///< "block.parameter"; of tied ones the owner's
  at::Tensor gradient;      ///< fp32, [rows, columns] of the whole matrix, clipped; may be changed
  at::Tensor parameter;     ///< the same of the masters; undefined unless reads_parameter()
  at::Tensor step_count;    ///< fp32 scalar, 1 in the first step
};

/// Has no state of its own: one serves all matrices of all ranks. The strategy subtracts learning
/// rate * update from the parameter, after the decay, in fp32, wherever its pieces lie; it leaves
/// parameter and state as they were where a step is skipped. A group's rate and decay count; one
/// that sets betas is refused.
class MatrixOptimizer {
 public:
  virtual ~MatrixOptimizer() = default;
  virtual std::string name() const = 0;  ///< for messages, e.g. "Muon"
  /// As Optimizer::describe().
  virtual std::string describe() const { return name(); }
  /// What it keeps for a matrix of this shape: names, as checkpoints have them, and shapes of fp32
  /// tensors that start as zeros.
  using NamedShapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;
  virtual NamedShapes state_shapes(c10::IntArrayRef shape)
      const = 0;  ///< names and shapes of its state for a matrix of this shape
  /// Returns the update: of the gradient's shape, any floating dtype. state: as state_shapes()
  /// lists it; tensors are changed in place or replaced. Queues work on the current stream and does
  /// not wait for it. Decided from its arguments alone.
  virtual at::Tensor update(const MatrixStep& step, NamedTensors& state) const = 0;

  /// Its learning rate over that of optimizer_step(), which the optimizer beside it takes as it is.
  virtual double relative_rate() const { return 1; }
  /// Of its rate, for matrices of this shape; the decay's rate is without it.
  virtual double lr_factor(c10::IntArrayRef) const { return 1; }
  /// Decoupled, of parameters that decay; a group's own counts instead.
  virtual double weight_decay() const { return 0; }
  virtual bool reads_parameter() const { return false; }  ///< costs a second gather
  /// In which updates travel to the ranks that hold the parameter.
  virtual at::ScalarType update_dtype() const { return at::kFloat; }
  /// Of one update, in any unit: owners are chosen so that all have equal shares. The same on all
  /// ranks.
  virtual double cost(c10::IntArrayRef shape) const {
    return static_cast<double>(shape[0]) * static_cast<double>(shape[1]);
  }
};

/// As ParameterPredicate (tessera/model/parameter_groups.h); asked for what has two dimensions.
using MatrixPredicate = std::function<bool(const std::string& block, const std::string& parameter,
                                           c10::IntArrayRef shape)>;

/// Matrices that are neither embeddings nor heads, by their names: no word of "block.parameter"
/// between dots has "embed" in it, is wte, wpe, head, score or classifier, or ends with _head.
MatrixPredicate hidden_matrices();

/// For attach(): an optimizer of the matrices that the predicate chooses, and one of all elements
/// that are left. Tries the optimizer on a small matrix. Throws Error(kInvalidArgument) for an
/// update or a state of a wrong shape, and for `others` that has matrices itself.
OptimizerFactory with_matrices(std::shared_ptr<const MatrixOptimizer> optimizer,
                               MatrixPredicate chooses, OptimizerFactory others);

/// What with_matrices() makes; strategies look for it. Called as a factory of an optimizer of
/// elements it throws Error(kInvalidArgument).
struct WholeMatrices {
  std::shared_ptr<const MatrixOptimizer> optimizer;  ///< the optimizer of the matrices
  MatrixPredicate chooses;                           ///< chooses the matrices
  OptimizerFactory others;                           ///< the optimizer of all other elements

  /// Throws Error(kInvalidArgument): strategies look inside.
  std::unique_ptr<Optimizer> operator()(const std::vector<OptimizerRange>& ranges) const;
};
/// Null: the optimizer treats every element alone.
const WholeMatrices* whole_matrices(const OptimizerFactory& optimizer);

}  // namespace tessera
