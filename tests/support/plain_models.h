#pragma once
// BLOOM, GPT-2 and Llama as their papers have them, on whole parameters, in plain ATen.
#include "tessera/models/bloom.h"
#include "tessera/models/gpt2.h"
#include "tessera/models/llama.h"
#include "tessera/testing/fuzz.h"

namespace tessera::testing {

PlainForward plain_bloom(const BloomConfig& config);
PlainForward plain_gpt2(const Gpt2Config& config);
PlainForward plain_llama(const LlamaConfig& config);

// The sum over packed rows, each run alone; other micro-batches as they are.
PlainForward each_row_alone(PlainForward forward);

}  // namespace tessera::testing
