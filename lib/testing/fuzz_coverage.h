// SPDX-License-Identifier: MIT
#pragma once
// Coverage of a case: values of every option, counted only where the option has an effect.
#include <functional>
#include <string>
#include <vector>

#include "lib/testing/fuzz_case.h"

namespace tessera::testing {

struct FuzzFeature {
  std::string name;
  std::vector<std::string> values;                              // values that a long run must cover
  std::function<std::vector<std::string>(const FuzzCase&)> of;  // empty: no effect in this case
};
std::vector<FuzzFeature> fuzz_features();

}  // namespace tessera::testing
