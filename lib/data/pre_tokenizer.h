// SPDX-License-Identifier: MIT
#pragma once
// Splits text into the pieces that BPE merges within: hand-written scanners of the published
// patterns.
#include <functional>
#include <optional>
#include <string_view>

namespace tessera {

enum class PreTokenizer { kBloom, kGpt2, kLlama3, kQwen, kTekken };

// The pre-tokenizer for a regular expression as written in tokenizer.json; nullopt if unknown.
std::optional<PreTokenizer> pre_tokenizer_for(std::string_view regular_expression);

// Calls `piece` with the consecutive non-empty pieces of `text` (valid UTF-8).
void split_pieces(PreTokenizer kind, std::string_view text,
                  const std::function<void(std::string_view)>& piece);

}  // namespace tessera
