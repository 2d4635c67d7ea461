// SPDX-License-Identifier: MIT
#pragma once
// Cutting text into the pieces that BPE merges inside of: the published patterns, scanned by
// hand.
#include <functional>
#include <optional>
#include <string_view>

namespace tessera {

enum class PreTokenizer { kBloom, kGpt2, kLlama3, kQwen, kTekken };

// The pattern's name for its regular expression as written in tokenizer.json; nullopt for any
// other.
std::optional<PreTokenizer> pre_tokenizer_for(std::string_view regular_expression);

// Calls `piece` with consecutive non-empty pieces that together are `text` (valid UTF-8).
void split_pieces(PreTokenizer kind, std::string_view text,
                  const std::function<void(std::string_view)>& piece);

}  // namespace tessera
