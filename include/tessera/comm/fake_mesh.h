// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Fake mesh: one rank of a mesh without other ranks, for dry runs.
#include <functional>
#include <memory>

#include "tessera/comm/communication_ledger.h"
#include "tessera/comm/device_mesh.h"

namespace tessera {

/// DeviceMesh of one rank on meta tensors. Its communicators check arguments, record them in a
/// ledger and return at once; nothing is sent. Use Communicator::split_by(); split() throws
/// Error(kInvalidArgument).
class FakeMesh {
 public:
  /// Wraps the world's communicator; the ledger records what the wrapper calls.
  using Wrap = std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator> world)>;

  /// Throws Error(kInvalidArgument) for a coordinate outside the extents.
  FakeMesh(const MeshExtents& extents, const MeshCoordinate& coordinate, const Wrap& wrap = {});

  const DeviceMesh& mesh() const { return *mesh_; }         ///< for make_strategy()
  CommunicationLedger& ledger() const { return *ledger_; }  ///< operations recorded so far

 private:
  std::shared_ptr<CommunicationLedger> ledger_;
  std::unique_ptr<Communicator> world_;
  std::unique_ptr<DeviceMesh> mesh_;
};

/// Rank `rank` of a fake communicator of `size` ranks.
std::unique_ptr<Communicator> fake_communicator(int rank, int size);

}  // namespace tessera
