// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// One rank of a mesh that is not there.
#include <functional>
#include <memory>

#include "tessera/comm/communication_ledger.h"
#include "tessera/comm/device_mesh.h"

namespace tessera {

/// A rank's mesh on tensors without memory (meta). Its communicators check their arguments, write
/// them to a ledger and return at once; nothing is sent, and no other rank exists. They are split
/// by Communicator::split_by(); split() throws Error(kInvalidArgument).
class FakeMesh {
 public:
  /// Puts a communicator of one's own around that of all ranks; the ledger
  /// has what this calls.
  using Wrap = std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator> world)>;

  /// Throws Error(kInvalidArgument) for a coordinate outside the extents.
  FakeMesh(const MeshExtents& extents, const MeshCoordinate& coordinate, const Wrap& wrap = {});

  const DeviceMesh& mesh() const { return *mesh_; }         ///< for make_strategy()
  CommunicationLedger& ledger() const { return *ledger_; }  ///< what was called so far

 private:
  std::shared_ptr<CommunicationLedger> ledger_;
  std::unique_ptr<Communicator> world_;
  std::unique_ptr<DeviceMesh> mesh_;
};

/// A communicator of `size` ranks that are not there, of which this is number `rank`.
std::unique_ptr<Communicator> fake_communicator(int rank, int size);

}  // namespace tessera
