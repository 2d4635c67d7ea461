#pragma once
// BLOOM, GPT-2 and Llama as their papers have them, on whole parameters, in plain ATen. Packed rows
// are run alone each and added up. In training they drop what the configuration says, drawn from
// the micro-batch's seed and the one that the model was built with. BLOOM alone takes masks: its
// queries that see no key look at all of their row alike, as in transformers.
#include "lib/testing/fuzz.h"
#include "tessera/models/bloom.h"
#include "tessera/models/gpt2.h"
#include "tessera/models/llama.h"

namespace tessera::testing {

PlainForward plain_bloom(const BloomConfig& config, uint64_t seed = 0);
PlainForward plain_gpt2(const Gpt2Config& config, uint64_t seed = 0);
PlainForward plain_llama(const LlamaConfig& config, uint64_t seed = 0);

}  // namespace tessera::testing
