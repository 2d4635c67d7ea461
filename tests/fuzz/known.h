// SPDX-License-Identifier: MIT
#pragma once
// Cases that strategies cannot pass yet, with their defects. The list may only shrink.
#include <string>

#include "lib/testing/fuzz_case.h"

namespace tessera::testing {

std::string known_defect(const FuzzCase& fuzz_case);  // empty: none

}  // namespace tessera::testing
