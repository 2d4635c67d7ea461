// SPDX-License-Identifier: MIT
#pragma once
// Normalisation before tokenisation, with the origin of every byte.
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera {

struct NormalizedText {
  std::string text;
  std::vector<size_t> origin;  // original offset of each byte and of the end, ascending
};

class Normalizer {
 public:
  struct Prepend {  // only for a non-empty text
    std::string text;
  };
  struct Replace {
    std::string from, to;
  };
  struct Strip {  // removes white space
    bool left = true, right = true;
  };
  struct Nfc {};
  using Step = std::variant<Prepend, Replace, Strip, Nfc>;

  void add(Step step) { steps_.push_back(std::move(step)); }
  bool only_composes() const;  // has no step but Nfc
  // Normalises text[begin, end); origins are offsets in `text`. Empty if unchanged.
  std::optional<NormalizedText> apply(std::string_view text, size_t begin, size_t end) const;

 private:
  std::vector<Step> steps_;  // in order
};

// Unicode's canonical composition of a text; empty if unchanged.
std::optional<NormalizedText> nfc_of(std::string_view text);

}  // namespace tessera
