// SPDX-License-Identifier: MIT
#pragma once
// Checks that the operations of a case's ranks match, without running them.
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "lib/testing/fuzz.h"

namespace tessera::testing {

// Number of checked cases, and reasons for skipping others.
struct FuzzedCommunication {
  int64_t checked = 0;
  std::map<std::string, int64_t> not_checked;

  // The problem, or "".
  std::string check(const FuzzCase& c, const ModelSpec& model,
                    std::span<const MicroBatch> micro_batches);
};

}  // namespace tessera::testing
