// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// What a layout should hold and send per rank, from shapes alone: the formulas of
/// docs/concepts/strategies.md.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/model/model_spec.h"
#include "tessera/optim/matrix_optimizer.h"

namespace tessera {

/// A model and a way to spread it over ranks.
struct LayoutPlan {
  ParallelConfig parallel;   ///< the strategy and its sizes
  MeshExtents mesh;          ///< ranks along each axis
  int64_t accumulation = 1;  ///< micro-batches a step
  ModelSpec model;           ///< as attach() would be given it
  bool on_gpu = false;       ///< whether the strategy runs on GPUs
  /// Of the optimizer; as AdamW's.
  StateNeeds moments = {.rules = {}, .bytes = 8, .small_bytes = 8, .splits_masters = true};
  /// Of a micro-batch between blocks: what pipeline and tensor ranks exchange. 0: left out.
  double activation_elements = 0, tokens = 0;
  /// Of what the model marks as whole matrices (plan_optimizer()); null: there is none.
  std::shared_ptr<const MatrixOptimizer> matrices = nullptr;
  bool saves_frozen = true;  ///< checkpoints have what is frozen, too
};

/// What one rank sends in a step for one purpose, in the ring model.
struct Traffic {
  std::string what;         ///< "gradients"
  std::string operation;    ///< "reduce-scatter"
  Axis axis = Axis::kData;  ///< the axis over which it is sent
  int ranks = 1;            ///< that take part
  double bytes = 0;         ///< bytes that one rank sends
};

/// Of one rank; the categories are those of StrategyMemory.
struct LayoutCost {
  /// Bytes on the device, by category.
  double parameter_bytes = 0, gradient_bytes = 0, optimizer_bytes = 0, buffer_bytes = 0;
  double host_bytes = 0;        ///< bytes in host memory
  double host_state_bytes = 0;  ///< of them masters and moments, which every step changes
  double saved_bytes = 0;  ///< of a checkpoint, by this rank; a copy of them while it is written
  double comm_bytes_per_step = 0;  ///< sent by one rank over all axes: the sum of traffic
  std::vector<Traffic> traffic;    ///< what is not empty

  /// The bytes of all categories on the device.
  double device_bytes() const {
    return parameter_bytes + gradient_bytes + optimizer_bytes + buffer_bytes;
  }
};

/// Of a rank of this pipeline stage. Throws Error(kInvalidArgument) for a model that the mesh
/// cannot share or cut.
LayoutCost layout_cost(const LayoutPlan& plan, int stage = 0);
/// Category by category the largest of all stages; comm_bytes_per_step is the first stage's.
LayoutCost largest_layout_cost(const LayoutPlan& plan);

/// Says what the optimizer keeps, and which of the plan's model it takes whole. Throws
/// Error(kInvalidArgument) where attach() would.
void plan_optimizer(LayoutPlan& plan, const OptimizerFactory& optimizer);

}  // namespace tessera
