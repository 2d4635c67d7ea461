// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The ranks of the world arranged on three axes: pipeline x data x tensor, tensor innermost.
#include <array>
#include <memory>

#include "tessera/comm/communicator.h"

namespace tessera {

enum class Axis { kPipeline = 0, kData = 1, kTensor = 2 };

struct MeshExtents {
  int pipeline = 1;
  int data = 1;
  int tensor = 1;
};

/// Owns one communicator per axis, made from the world by split(). The world outlives the mesh.
class DeviceMesh {
 public:
  /// Collective. Throws Error(kInvalidArgument) with all extents in the message unless their
  /// product is world.size().
  DeviceMesh(Communicator& world, const MeshExtents& extents);

  Communicator& world() const { return *world_; }
  Communicator& axis(Axis axis) const { return *axes_[static_cast<size_t>(axis)]; }
  int extent(Axis axis) const { return this->axis(axis).size(); }
  int coordinate(Axis axis) const { return this->axis(axis).rank(); }

 private:
  Communicator* world_;
  std::array<std::unique_ptr<Communicator>, 3> axes_;
};

}  // namespace tessera
