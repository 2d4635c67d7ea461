// SPDX-License-Identifier: MIT
#pragma once
// Whether what the ranks of a case call fits together, found without running them.
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "lib/testing/fuzz.h"

namespace tessera::testing {

// Cases that were looked at, and why others could not be.
struct FuzzedCommunication {
  int64_t checked = 0;
  std::map<std::string, int64_t> not_checked;

  // What is wrong, or empty.
  std::string check(const FuzzCase& c, const ModelSpec& model,
                    std::span<const MicroBatch> micro_batches);
};

}  // namespace tessera::testing
