// SPDX-License-Identifier: MIT
#pragma once
// Contract of every transport, as code: all ranks of a communicator call each case, which throws at
// the first deviation.
#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera::test {

struct ConformanceCase {
  std::string name;
  std::function<void(Communicator&)> run;
};
std::vector<ConformanceCase> conformance_cases();

}  // namespace tessera::test
