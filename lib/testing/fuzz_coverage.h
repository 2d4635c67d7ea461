// SPDX-License-Identifier: MIT
#pragma once
// What a case covers: every option's values, counted only where the option does something.
#include <functional>
#include <string>
#include <vector>

#include "lib/testing/fuzz_case.h"

namespace tessera::testing {

struct FuzzFeature {
  std::string name;
  std::vector<std::string> values;                              // that a long run must have had
  std::function<std::vector<std::string>(const FuzzCase&)> of;  // none: it does nothing here
};
std::vector<FuzzFeature> fuzz_features();

}  // namespace tessera::testing
