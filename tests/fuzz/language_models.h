// SPDX-License-Identifier: MIT
#pragma once
// BLOOM, GPT-2 and Llama for the fuzzer, with forwards of their own in plain ATen.
#include "lib/testing/fuzz.h"

namespace tessera::testing {

FuzzFamilies language_model_families();

}  // namespace tessera::testing
