// SPDX-License-Identifier: MIT
#pragma once
// What every transport must do, as code: each case is called by all ranks of a communicator and
// throws on the first deviation.
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
