// SPDX-License-Identifier: MIT
#include "tessera/comm/device_mesh.h"

#include "tessera/core/error.h"

namespace tessera {

MeshCoordinate coordinate_of(int rank, const MeshExtents& extents) {
  return {.pipeline = rank / (extents.tensor * extents.data),
          .data = rank / extents.tensor % extents.data,
          .tensor = rank % extents.tensor};
}

int rank_of(const MeshCoordinate& at, const MeshExtents& extents) {
  return (at.pipeline * extents.data + at.data) * extents.tensor + at.tensor;
}

DeviceMesh::DeviceMesh(Communicator& world, const MeshExtents& extents) : world_(&world) {
  const auto& [pipeline, data, tensor] = extents;
  check(pipeline >= 1 && data >= 1 && tensor >= 1 &&
            int64_t{pipeline} * data * tensor == world.size(),
        ErrorCode::kInvalidArgument, "device mesh: pipeline ", pipeline, " x data ", data,
        " x tensor ", tensor, " must be positive and multiply to the world size, which is ",
        world.size(), "; change the extents or start as many ranks");
  const auto along = [&](Axis axis) {
    return world.split_by([extents, axis](int rank) {
      const auto [p, d, t] = coordinate_of(rank, extents);
      if (axis == Axis::kPipeline) return Communicator::SplitArguments{d * extents.tensor + t, p};
      if (axis == Axis::kData) return Communicator::SplitArguments{p * extents.tensor + t, d};
      return Communicator::SplitArguments{p * extents.data + d, t};
    });
  };
  for (const Axis axis : {Axis::kPipeline, Axis::kData, Axis::kTensor}) {
    axes_[static_cast<size_t>(axis)] = along(axis);
  }
}

}  // namespace tessera
