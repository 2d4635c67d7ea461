// SPDX-License-Identifier: MIT
#pragma once
// The committed exported programs for the fuzzer.
#include "lib/testing/fuzz.h"

namespace tessera::testing {

// "program-llama" and others of tests/data/programs. The oracle runs them in ATen's operators.
FuzzFamilies exported_program_families();

}  // namespace tessera::testing
