#pragma once
// Spaces written as U+2581, as SentencePiece and the tokenizers converted from it do.
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

inline constexpr std::string_view kMetaspace = "\u2581";

struct Metaspace {
  enum class Prepend { kNever, kFirst, kAlways };
  Prepend prepend =
      Prepend::kAlways;  // one more in front: never, of the text's start, of each part
  bool split = false;    // pieces begin where a space is
  // As normalizer (Prepend, Replace) it sees the parts between added tokens that are not
  // normalized, and others are looked for in what it makes; there it prepends before spaces too. As
  // pre-tokenizer it comes after both.
  bool normalizes = false;
};

// text[begin, end) with spaces replaced.
struct SpacedText {
  std::string text;
  std::vector<size_t> origin;  // of each byte and of the end: its place in the original
};
SpacedText with_metaspaces(std::string_view text, size_t begin, size_t end, const Metaspace& how);

// Calls `piece` with the pieces of text[begin, end): all of it, or cut before every space.
void split_at_metaspaces(std::string_view text, size_t begin, size_t end, bool split,
                         const std::function<void(size_t begin, size_t end)>& piece);

}  // namespace tessera
