// SPDX-License-Identifier: MIT
#include "tessera/comm/device_mesh.h"

#include "tessera/core/error.h"

namespace tessera {

DeviceMesh::DeviceMesh(Communicator& world, const MeshExtents& extents) : world_(&world) {
  const auto& [pipeline, data, tensor] = extents;
  check(pipeline >= 1 && data >= 1 && tensor >= 1 &&
            int64_t{pipeline} * data * tensor == world.size(),
        ErrorCode::kInvalidArgument, "device mesh: pipeline ", pipeline, " x data ", data,
        " x tensor ", tensor, " must be positive and multiply to the world size, which is ",
        world.size(), "; change the extents or start as many ranks");
  const int t = world.rank() % tensor;
  const int d = world.rank() / tensor % data;
  const int p = world.rank() / (tensor * data);
  axes_[static_cast<size_t>(Axis::kPipeline)] = world.split(d * tensor + t, p);
  axes_[static_cast<size_t>(Axis::kData)] = world.split(p * tensor + t, d);
  axes_[static_cast<size_t>(Axis::kTensor)] = world.split(p * data + d, t);
}

}  // namespace tessera
