// SPDX-License-Identifier: MIT
#pragma once
// Cases that the strategies cannot pass yet, each with its defect. The list only gets shorter.
#include <string>

#include "lib/testing/fuzz_case.h"

namespace tessera::testing {

std::string known_defect(const FuzzCase& fuzz_case);  // empty: none

}  // namespace tessera::testing
