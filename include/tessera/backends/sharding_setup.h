// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// What a ShardingStrategy works with beside its configuration.
#include <functional>

#include "tessera/backends/unit_optimizer.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/model/model_spec.h"

namespace tessera {

/// What becomes of a model before its blocks are built.
using ModelTransform = std::function<ModelSpec(const ModelSpec&)>;

/// All of it outlives the strategy. A data axis alone is a whole setup.
struct ShardingSetup {
  /// The communicator outlives the strategy.
  ShardingSetup(Communicator& data_axis) : data(data_axis) {}

  Communicator& data;  ///< the data axis
  /// The ranks that share the model with those of the data axis; null: they are all there are.
  const DeviceMesh* mesh = nullptr;
  UnitOptimizerFactory placement;  ///< where masters and moments live; null: DeviceOptimizer
  ModelTransform transform;        ///< of the model given to attach(); null: as it is
};

}  // namespace tessera
