// SPDX-License-Identifier: MIT
#pragma once
// The pre-tokenizer that writes spaces as U+2581, as SentencePiece does.
#include <cstddef>
#include <functional>
#include <string_view>

#include "lib/data/normalizer.h"

namespace tessera {

inline constexpr std::string_view kMetaspace = "\u2581";

struct Metaspace {
  enum class Prepend { kNever, kFirst, kAlways };
  Prepend prepend =
      Prepend::kAlways;  // one more in front: never, of the text's start, of each part
  bool split = false;    // pieces begin where a space is
};

// text[begin, end) with spaces replaced. first: nothing of the whole text stands before it.
NormalizedText with_metaspaces(std::string_view text, size_t begin, size_t end, bool first,
                               const Metaspace& how);

// Calls `piece` with the pieces of text[begin, end): all of it, or cut before every space.
void split_at_metaspaces(std::string_view text, size_t begin, size_t end, bool split,
                         const std::function<void(size_t begin, size_t end)>& piece);

}  // namespace tessera
