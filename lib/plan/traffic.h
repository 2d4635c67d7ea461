// SPDX-License-Identifier: MIT
#pragma once
// Bytes that a rank sends in a step, by purpose.
#include <string>
#include <vector>

#include "tessera/comm/communication_ledger.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/model/model_spec.h"

namespace tessera {

// Traffic of one purpose.
struct Traffic {
  std::string what;         // "gradients"
  std::string operation;    // "reduce-scatter"
  Axis axis = Axis::kData;  // the mesh axis
  int ranks = 1;            // participating ranks
  double bytes = 0;         // sent by one rank, in the ring model
};

// Purposes with the bytes of all their operations, in the order of tables. Scalars such as batch
// counts, norms and losses are left out.
std::vector<Traffic> traffic_of(const CommunicationLedger& ledger, const ModelSpec& model);

}  // namespace tessera
