// SPDX-License-Identifier: MIT
#pragma once
// A defect in a rank's operations, planted between its strategy and its communicators.
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera::testing {

enum class Wrong {
  kSkipped,    // it is not called
  kDoubled,    // it is called twice
  kReordered,  // the rank's next operation is called first
  kCount,      // half of the elements
  kDtype,      // in another dtype, and the result is lost
  kRoot,       // from the next rank
  kPartner,    // with the next rank
  kAxis,       // over another axis
  kReduction,  // the maximum instead of the sum
  kNotWaited,  // its handle waits for nothing
};
const char* name_of(Wrong wrong);

struct PlantedDefect {
  Wrong wrong = Wrong::kSkipped;
  OperationKind kind = OperationKind::kAllReduce;
  std::string axis;  // "pipeline", "data" or "tensor", or a prefix of a name: "data.0" of its split
  std::string phase;  // as in the operation log; empty: any
  int which = 0;      // index among the matching operations, from 0
};

// Result of planting on a rank.
struct Planted {
  int times = 0;
  std::string tensor;  // named as in the ledger
};

// Wraps all ranks of a fake mesh. planted must outlive it.
std::unique_ptr<Communicator> plant(std::unique_ptr<Communicator> world,
                                    const PlantedDefect& defect, Planted& planted);

}  // namespace tessera::testing
