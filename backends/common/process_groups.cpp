// SPDX-License-Identifier: MIT
#include "backends/common/process_groups.h"

#include "tessera/core/error.h"

namespace tessera {

ProcessGroups::ProcessGroups(const ShardingSetup& setup, int count)
    : data(setup.data),
      data_rank(data.rank()),
      world(&data),
      everyone(&data),
      shards(&data),
      shard_replicas(&data) {
  const int ranks = data.size();
  check(count > 0 && ranks % count == 0, ErrorCode::kInvalidArgument, "flat buffers cut into ",
        count, " shards: that must divide the data axis of ", ranks, " ranks");
  if (count > 1 && count < ranks) {
    using SplitArguments = Communicator::SplitArguments;
    group_ = data.split_by([count](int rank) { return SplitArguments{rank / count, rank}; });
    copies_ = data.split_by([count](int rank) { return SplitArguments{rank % count, rank}; });
    shards = group_.get();
    replicas = copies_.get();
  }
  if (count > 1) shard_replicas = replicas;
  if (setup.mesh == nullptr) return;
  const DeviceMesh& mesh = *setup.mesh;
  check(&mesh.sharding() == &data, ErrorCode::kInternal,
        "ShardingSetup: the mesh has another data axis");
  data_rank = mesh.coordinate(Axis::kData);
  everyone = &mesh.world();
  tensor_ = &mesh.axis(Axis::kTensor);
  if (mesh.extent(Axis::kContext) > 1) context_ = &mesh.axis(Axis::kContext);
  if (mesh.extent(Axis::kExpert) > 1) {
    expert_ = &mesh.axis(Axis::kExpert);
    expert_holders_ = mesh.expert_holders();
    check(count == 1 || count == ranks, ErrorCode::kInternal,
          "an expert axis beside several replicas of the model's shards");
  }
  sharers = mesh.extent(Axis::kPipeline) * mesh.extent(Axis::kContext) * mesh.extent(Axis::kTensor);
  if (sharers > 1) world = everyone;  // else the data axis, whose operations run in order
  sharer = (mesh.coordinate(Axis::kPipeline) * mesh.extent(Axis::kContext) +
            mesh.coordinate(Axis::kContext)) *
               mesh.extent(Axis::kTensor) +
           mesh.coordinate(Axis::kTensor);
}

int64_t ProcessGroups::extra_bytes_sent() const {
  return replicas == nullptr ? 0 : shards->bytes_sent() + replicas->bytes_sent();
}

std::array<int64_t, 7> ProcessGroups::bytes_sent_by_axis() const {
  const auto sent = [](const Communicator* axis) {
    return axis == nullptr ? int64_t{0} : axis->bytes_sent();
  };
  return {sent(&data),    sent(shards),  sent(replicas),       sent(tensor_),
          sent(context_), sent(expert_), sent(expert_holders_)};
}

}  // namespace tessera
