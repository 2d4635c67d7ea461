// SPDX-License-Identifier: MIT
#pragma once
// A defect in what a rank does, planted between its strategy and its communicators.
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera::testing {

enum class Wrong {
  kSkipped,    // it is not called
  kDoubled,    // it is called twice
  kReordered,  // the next operation of the rank is called first
  kCount,      // half of the elements
  kDtype,      // in another one, and the result is lost
  kRoot,       // from the next rank
  kPartner,    // with the next rank
  kAxis,       // over another axis
  kReduction,  // the largest instead of the sum
  kNotWaited,  // its handle waits for nothing
};
const char* name_of(Wrong wrong);

struct PlantedDefect {
  Wrong wrong = Wrong::kSkipped;
  OperationKind kind = OperationKind::kAllReduce;
  std::string axis;   // "pipeline", "data" or "tensor", or what begins so: "data.0" of its split
  std::string phase;  // as the operation log says it; empty: any
  int which = 0;      // of those, from 0
};

// What was planted on a rank.
struct Planted {
  int times = 0;
  std::string tensor;  // as the ledger names it
};

// Around all ranks of a fake mesh. planted outlives it.
std::unique_ptr<Communicator> plant(std::unique_ptr<Communicator> world,
                                    const PlantedDefect& defect, Planted& planted);

}  // namespace tessera::testing
