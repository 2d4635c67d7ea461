// SPDX-License-Identifier: MIT
#pragma once
// What tokenizers do to a text before they split it, and where its bytes come from.
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera {

struct NormalizedText {
  std::string text;
  std::vector<size_t> origin;  // of each byte and of the end: its place in the original, ascending
};

class Normalizer {
 public:
  struct Prepend {  // to a text that is not empty
    std::string text;
  };
  struct Replace {
    std::string from, to;
  };
  struct Strip {  // white space
    bool left = true, right = true;
  };
  struct Nfc {};
  using Step = std::variant<Prepend, Replace, Strip, Nfc>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  bool only_composes() const;  // has no step but Nfc
  // Of text[begin, end), whose origins are places in `text`; nothing where that stays as it is.
  std::optional<NormalizedText> apply(std::string_view text, size_t begin, size_t end) const;

 private:
  std::vector<Step> steps_;  // one after the other
};

// Unicode's canonical composition of a text; nothing where it stays as it is.
std::optional<NormalizedText> nfc_of(std::string_view text);

}  // namespace tessera
