// SPDX-License-Identifier: MIT
#pragma once
// BLOOM, GPT-2, Llama and its relatives after their papers, on unsharded parameters, in plain ATen.
// Packed rows are run alone and summed. Training applies the configuration's dropout, drawn from
// the micro-batch's seed and the model's. Only BLOOM takes masks: its queries without visible keys
// attend uniformly to their row, as in transformers.
#include "lib/testing/fuzz.h"
#include "tessera/models/language_model.h"

namespace tessera::testing {

PlainForward plain_bloom(const DecoderConfig& config, uint64_t seed = 0);
PlainForward plain_gpt2(const DecoderConfig& config, uint64_t seed = 0);
PlainForward plain_llama(const DecoderConfig& config, uint64_t seed = 0);

}  // namespace tessera::testing
