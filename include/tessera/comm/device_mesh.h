// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Device mesh: the ranks of the world on four axes, pipeline x data x context x tensor, tensor
/// innermost. A fifth, the expert axis, lies inside the data axis.
#include <array>
#include <memory>

#include "tessera/comm/communicator.h"

namespace tessera {

/// A direction of the mesh; kTensor is the innermost.
///
/// kExpert lies inside kData: neighbouring data ranks, each of which owns a part of every layer's
/// experts.
enum class Axis { kPipeline = 0, kData = 1, kTensor = 2, kContext = 3, kExpert = 4 };

/// Ranks along each axis.
struct MeshExtents {
  int pipeline = 1;  ///< the number of pipeline stages
  int data = 1;      ///< ranks that divide the global batch
  int tensor = 1;    ///< ranks that divide each layer
  int context = 1;   ///< ranks that divide each row; between data and tensor
  int expert = 1;    ///< neighbouring data ranks that divide the experts; divides `data`

  /// Ranks that divide parameters, gradients and optimizer state: data x context.
  int sharding() const { return data * context; }
  int ranks() const { return pipeline * data * context * tensor; }  ///< ranks of the mesh
};

/// A rank's place on each axis, from 0.
struct MeshCoordinate {
  int pipeline = 0;  ///< its stage
  int data = 0;      ///< its part of the batch
  int tensor = 0;    ///< its slice of each layer
  int context = 0;   ///< its pieces of each row
};

/// The coordinate of a rank of the world.
MeshCoordinate coordinate_of(int rank, const MeshExtents& extents);
/// The rank with this coordinate.
int rank_of(const MeshCoordinate& coordinate, const MeshExtents& extents);

/// The axes' communicators, one each, split from the world, which outlives the mesh.
class DeviceMesh {
 public:
  /// Collective. Throws Error(kInvalidArgument) with all extents in the message unless their
  /// product is world.size(), and for an expert axis that does not divide the data axis or stands
  /// beside a context axis.
  DeviceMesh(Communicator& world, const MeshExtents& extents);

  Communicator& world() const { return *world_; }  ///< the communicator of all ranks
  /// The ranks that differ from this one only on this axis. kExpert: only with an extent above 1.
  Communicator& axis(Axis axis) const { return *axes_[static_cast<size_t>(axis)]; }
  /// The data ranks with the same experts as this one, one of each group of the expert axis. Null:
  /// no expert axis.
  Communicator* expert_holders() const { return expert_holders_.get(); }
  /// The ranks that divide parameters, gradients and optimizer state: data x context, context
  /// innermost. The data axis where the context axis has one rank.
  Communicator& sharding() const { return sharding_ ? *sharding_ : axis(Axis::kData); }
  /// Ranks along the axis.
  int extent(Axis axis) const { return has(axis) ? this->axis(axis).size() : 1; }
  /// This rank's coordinate on the axis, from 0.
  int coordinate(Axis axis) const { return has(axis) ? this->axis(axis).rank() : 0; }

 private:
  bool has(Axis axis) const { return axes_[static_cast<size_t>(axis)] != nullptr; }

  Communicator* world_;
  std::array<std::unique_ptr<Communicator>, 5> axes_;  // null: an expert axis of one rank
  std::unique_ptr<Communicator> sharding_;             // null: the data axis
  std::unique_ptr<Communicator> expert_holders_;
};

}  // namespace tessera
