// SPDX-License-Identifier: MIT
#pragma once
// What a rank sends in a step, by purpose.
#include <string>
#include <vector>

#include "tessera/comm/communication_ledger.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/model/model_spec.h"

namespace tessera {

// For one purpose.
struct Traffic {
  std::string what;         // "gradients"
  std::string operation;    // "reduce-scatter"
  Axis axis = Axis::kData;  // the axis over which it is sent
  int ranks = 1;            // that take part
  double bytes = 0;         // bytes that one rank sends, in the ring model
};

// Purposes with the bytes of all their operations, in the order in which a table shows them. Counts
// of a batch, norms and losses, numbers all of them, are left out.
std::vector<Traffic> traffic_of(const CommunicationLedger& ledger, const ModelSpec& model);

}  // namespace tessera
