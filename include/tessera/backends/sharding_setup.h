// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Dependencies of a ShardingStrategy beside its configuration.
#include <functional>

#include "tessera/backends/unit_optimizer.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/model/model_spec.h"

namespace tessera {

/// Rewrites a model's description before its blocks are built, e.g. TensorParallel.
using ModelTransform = std::function<ModelSpec(const ModelSpec&)>;

/// Ranks, optimizer placement and model transform of a strategy; all outlive it. A data axis alone
/// is a complete setup.
struct ShardingSetup {
  /// The communicator outlives the strategy.
  ShardingSetup(Communicator& data_axis) : data(data_axis) {}

  Communicator& data;  ///< the data axis, or DeviceMesh::sharding()
  /// The mesh whose ranks hold the model together; null: the data axis alone.
  const DeviceMesh* mesh = nullptr;
  UnitOptimizerFactory placement;  ///< where masters and moments live; null: DeviceOptimizer
  ModelTransform transform;        ///< applied to the model given to attach(); null: none
};

}  // namespace tessera
