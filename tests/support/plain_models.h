// SPDX-License-Identifier: MIT
#pragma once
// BLOOM, GPT-2 and Llama with its kin as their papers have them, on whole parameters, in plain
// ATen. Packed rows are run alone each and added up. In training they drop what the configuration
// says, drawn from the micro-batch's seed and the one that the model was built with. BLOOM alone
// takes masks: its queries that see no key look at all of their row alike, as in transformers.
#include "lib/testing/fuzz.h"
#include "tessera/models/language_model.h"

namespace tessera::testing {

PlainForward plain_bloom(const DecoderConfig& config, uint64_t seed = 0);
PlainForward plain_gpt2(const DecoderConfig& config, uint64_t seed = 0);
PlainForward plain_llama(const DecoderConfig& config, uint64_t seed = 0);

}  // namespace tessera::testing
