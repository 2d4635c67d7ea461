// SPDX-License-Identifier: MIT
#pragma once
// BLOOM, GPT-2 and Llama for the fuzzer, with plain ATen forwards.
#include "lib/testing/fuzz.h"

namespace tessera::testing {

FuzzFamilies language_model_families();

}  // namespace tessera::testing
