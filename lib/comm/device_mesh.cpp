// SPDX-License-Identifier: MIT
#include "tessera/comm/device_mesh.h"

#include <utility>

#include "tessera/core/error.h"

namespace tessera {

MeshCoordinate coordinate_of(int rank, const MeshExtents& extents) {
  const int inner = extents.context * extents.tensor;
  return {.pipeline = rank / (inner * extents.data),
          .data = rank / inner % extents.data,
          .tensor = rank % extents.tensor,
          .context = rank / extents.tensor % extents.context};
}

int rank_of(const MeshCoordinate& at, const MeshExtents& extents) {
  return ((at.pipeline * extents.data + at.data) * extents.context + at.context) * extents.tensor +
         at.tensor;
}

DeviceMesh::DeviceMesh(Communicator& world, const MeshExtents& extents) : world_(&world) {
  const auto& [pipeline, data, tensor, context, expert] = extents;
  check(pipeline >= 1 && data >= 1 && tensor >= 1 && context >= 1 &&
            int64_t{pipeline} * data * context * tensor == world.size(),
        ErrorCode::kInvalidArgument, "device mesh: pipeline ", pipeline, " x data ", data,
        context == 1 ? "" : concat(" x context ", context), " x tensor ", tensor,
        " must be positive and multiply to the world size, which is ", world.size(),
        "; change the extents or start as many ranks");
  check(expert >= 1 && data % expert == 0, ErrorCode::kInvalidArgument, "device mesh: experts on ",
        expert, " ranks: that must divide the data axis of ", data);
  check(expert == 1 || context == 1, ErrorCode::kInvalidArgument, "device mesh: an expert axis of ",
        expert, " ranks beside a context axis of ", context, " is not built; leave one at 1");
  using SplitArguments = Communicator::SplitArguments;
  // Ranks that agree in all coordinates but `axis` form a group, ordered by that one.
  const auto along = [&](Axis axis) {
    return world.split_by([extents, axis](int rank) {
      MeshCoordinate at = coordinate_of(rank, extents);
      int* const free = axis == Axis::kPipeline  ? &at.pipeline
                        : axis == Axis::kData    ? &at.data
                        : axis == Axis::kContext ? &at.context
                                                 : &at.tensor;
      const int key = std::exchange(*free, 0);
      return SplitArguments{rank_of(at, extents), key};
    });
  };
  for (const Axis axis : {Axis::kPipeline, Axis::kData, Axis::kTensor, Axis::kContext}) {
    axes_[static_cast<size_t>(axis)] = along(axis);
  }
  if (expert > 1) {
    const auto split = [&](bool holders) {
      return world.split_by([extents, holders](int rank) {
        MeshCoordinate at = coordinate_of(rank, extents);
        const int group = at.data / extents.expert, own = at.data % extents.expert;
        at.data = holders ? own : group;
        return SplitArguments{rank_of(at, extents), holders ? group : own};
      });
    };
    axes_[static_cast<size_t>(Axis::kExpert)] = split(/*holders=*/false);
    expert_holders_ = split(/*holders=*/true);
  }
  if (context == 1) return;
  sharding_ = world.split_by([extents](int rank) {
    const MeshCoordinate at = coordinate_of(rank, extents);
    return SplitArguments{at.pipeline * extents.tensor + at.tensor,
                          at.data * extents.context + at.context};
  });
}

}  // namespace tessera
