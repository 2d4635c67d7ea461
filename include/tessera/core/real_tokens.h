// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Tokens that are not padding.

namespace tessera {

/// Name in MicroBatch::extra of the tokens that losses of routers count: bool, of input_ids' shape,
/// false for padding. Loaders set it with DataLoaderOptions::mark_padding, where there is padding.
/// Without it attention_mask says so; without both every token counts.
inline constexpr const char* kRealTokens = "real_tokens";

}  // namespace tessera
