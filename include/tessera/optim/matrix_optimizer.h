// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Matrix optimizers, which update a matrix as a whole, such as Muon (muon.h), LAMB, Adafactor or
/// Shampoo, under every strategy. Each matrix has one owner among the data and tensor ranks, which
/// alone keeps its state. An element-wise optimizer updates all other parameters:
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

/// Inputs of a matrix's update at its owner. Tensors are on the device, valid during the call.
struct MatrixStep {
  const std::string& name;  ///< "block.parameter"; for tied ones the owner's
  at::Tensor gradient;      ///< fp32 [rows, columns], the whole matrix, clipped; may be changed
  at::Tensor parameter;     ///< fp32 masters of the same shape; undefined unless reads_parameter()
  at::Tensor step_count;    ///< fp32 scalar, 1 in the first step
};

/// Stateless matrix optimizer; one object serves all matrices of all ranks. After weight decay the
/// strategy subtracts learning rate * update from the parameter's shards in fp32. A skipped step
/// changes neither parameter nor state. Groups may set rate and decay; setting betas is an error.
class MatrixOptimizer {
 public:
  virtual ~MatrixOptimizer() = default;
  virtual std::string name() const = 0;  ///< name in messages, e.g. "Muon"
  /// See Optimizer::describe().
  virtual std::string describe() const { return name(); }
  /// Names in checkpoints and shapes of fp32 state tensors, initially zeros.
  using NamedShapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;
  virtual NamedShapes state_shapes(c10::IntArrayRef shape) const = 0;  ///< state of such a matrix
  /// Returns the update: of the gradient's shape, any floating dtype. state: as state_shapes()
  /// lists it, to be changed in place or replaced. Enqueues work on the current stream without
  /// waiting. Deterministic in its arguments.
  virtual at::Tensor update(const MatrixStep& step, NamedTensors& state) const = 0;

  /// Its learning rate relative to that of optimizer_step(), which the element-wise optimizer uses.
  virtual double relative_rate() const { return 1; }
  /// Factor of its rate for matrices of this shape; does not affect the decay.
  virtual double lr_factor(c10::IntArrayRef) const { return 1; }
  /// Decoupled decay of parameters that decay; a group's own replaces it.
  virtual double weight_decay() const { return 0; }
  virtual bool reads_parameter() const { return false; }  ///< true costs a second gather
  /// Dtype in which updates are sent to the ranks that hold the parameter.
  virtual at::ScalarType update_dtype() const { return at::kFloat; }
  /// Cost of one update in any unit, by which owners are balanced. The same on all ranks.
  virtual double cost(c10::IntArrayRef shape) const {
    return static_cast<double>(shape[0]) * static_cast<double>(shape[1]);
  }
};

/// Selects matrices like ParameterPredicate (tessera/model/parameter_groups.h); called for
/// two-dimensional parameters.
using MatrixPredicate = std::function<bool(const std::string& block, const std::string& parameter,
                                           c10::IntArrayRef shape)>;

/// Matrices that are neither embeddings nor heads nor biases by name: no word of "block.parameter"
/// between dots contains "embed", is wte, wpe, head, score or classifier, or ends with _head, and
/// the last does not end with _bias.
MatrixPredicate hidden_matrices();

/// Factory for attach(): `optimizer` for the selected matrices, `others` for all other elements.
/// Tries the optimizer on a small matrix. Throws Error(kInvalidArgument) for an update or state of
/// a wrong shape, and if `others` has matrices itself.
OptimizerFactory with_matrices(std::shared_ptr<const MatrixOptimizer> optimizer,
                               MatrixPredicate chooses, OptimizerFactory others);

/// Result of with_matrices(), which strategies look for. Calling it like an element-wise factory
/// throws Error(kInvalidArgument).
struct WholeMatrices {
  std::shared_ptr<const MatrixOptimizer> optimizer;  ///< the optimizer of the matrices
  MatrixPredicate chooses;                           ///< selects the matrices
  OptimizerFactory others;                           ///< the optimizer of all other elements

  /// Throws Error(kInvalidArgument): strategies use the members instead.
  std::unique_ptr<Optimizer> operator()(const std::vector<OptimizerRange>& ranges) const;
};
/// The WholeMatrices in the factory; null: the optimizer is element-wise.
const WholeMatrices* whole_matrices(const OptimizerFactory& optimizer);

}  // namespace tessera
