// SPDX-License-Identifier: MIT
#pragma once
// The pre-tokenizer that replaces spaces by U+2581, as SentencePiece does.
#include <cstddef>
#include <functional>
#include <string_view>

#include "lib/data/normalizer.h"

namespace tessera {

inline constexpr std::string_view kMetaspace = "\u2581";

struct Metaspace {
  enum class Prepend { kNever, kFirst, kAlways };
  Prepend prepend = Prepend::kAlways;  // prepends one: never, to the text's start, or to each part
  bool split = false;                  // splits before every space
};

// text[begin, end) with spaces replaced. first: it starts the whole text.
NormalizedText with_metaspaces(std::string_view text, size_t begin, size_t end, bool first,
                               const Metaspace& how);

// Calls `piece` with text[begin, end) as a whole, or split before every space.
void split_at_metaspaces(std::string_view text, size_t begin, size_t end, bool split,
                         const std::function<void(size_t begin, size_t end)>& piece);

}  // namespace tessera
