// SPDX-License-Identifier: MIT
#pragma once
// Arguments of "tessera.decoder_layer".
#include <array>
#include <cstddef>
#include <optional>

#include "lib/program/rewrites/rewrite.h"

namespace tessera::program {

// Places of run_layer()'s arguments. Of several products one is given where the program has one.
enum LayerArgument : size_t {
  kArgHidden,
  kArgInputNorm,
  kArgInputNormBias,
  kArgQuery,
  kArgKey,
  kArgValue,
  kArgQueryBias,
  kArgKeyBias,
  kArgValueBias,
  kArgDense,
  kArgDenseBias,
  kArgAttentionNorm,
  kArgAttentionNormBias,
  kArgGate,
  kArgUp,
  kArgGateBias,
  kArgUpBias,
  kArgDown,
  kArgDownBias,
  kArgQueryNorm,
  kArgKeyNorm,
  kArgCos,
  kArgSin,
  kArgHalved,
  kArgByPlace,
  kArgEpsilon,
  kArgScale,
  kArgWindow,
  kArgHeads,
  kArgKeyHeads,
  kArgGated,
  kArgExactGelu,
  kArgPadded,
  kArgNumber,
  kArgCount
};
inline constexpr std::array<const char*, kArgCount> kArgNames = {"hidden",
                                                                 "input_norm",
                                                                 "input_norm_bias",
                                                                 "query",
                                                                 "key",
                                                                 "value",
                                                                 "query_bias",
                                                                 "key_bias",
                                                                 "value_bias",
                                                                 "dense",
                                                                 "dense_bias",
                                                                 "attention_norm",
                                                                 "attention_norm_bias",
                                                                 "gate",
                                                                 "up",
                                                                 "gate_bias",
                                                                 "up_bias",
                                                                 "down",
                                                                 "down_bias",
                                                                 "query_norm",
                                                                 "key_norm",
                                                                 "cos",
                                                                 "sin",
                                                                 "halved",
                                                                 "by_place",
                                                                 "epsilon",
                                                                 "scale",
                                                                 "window",
                                                                 "heads",
                                                                 "key_heads",
                                                                 "gated",
                                                                 "exact_gelu",
                                                                 "padded",
                                                                 "number"};

// The layer that ends in this sum, of tessera's operators; nullopt: none does, or it has another
// form. The proof looks at what the match does not.
std::optional<Candidate> match_layer(const ProgramView& view, const Node& sum);

}  // namespace tessera::program
