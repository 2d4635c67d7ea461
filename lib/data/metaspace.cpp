// SPDX-License-Identifier: MIT
#include "lib/data/metaspace.h"

#include <algorithm>

namespace tessera {

NormalizedText with_metaspaces(std::string_view text, size_t begin, size_t end, bool first,
                               const Metaspace& how) {
  NormalizedText spaced;
  const auto add_space = [&](size_t at) {
    spaced.text += kMetaspace;
    spaced.origin.insert(spaced.origin.end(), kMetaspace.size(), at);
  };
  const std::string_view part = text.substr(begin, end - begin);
  const bool has_space = part.starts_with(' ') || part.starts_with(kMetaspace);
  const bool wanted = how.prepend == Metaspace::Prepend::kAlways ||
                      (how.prepend == Metaspace::Prepend::kFirst && first);
  if (!part.empty() && wanted && !has_space) add_space(begin);
  for (size_t at = begin; at < end; ++at) {
    if (text[at] == ' ') {
      add_space(at);
    } else {
      spaced.text += text[at];
      spaced.origin.push_back(at);
    }
  }
  spaced.origin.push_back(end);
  return spaced;
}

void split_at_metaspaces(std::string_view text, size_t begin, size_t end, bool split,
                         const std::function<void(size_t begin, size_t end)>& piece) {
  while (begin < end) {
    const size_t next = split ? text.find(kMetaspace, begin + 1) : end;
    const size_t last = std::min(next, end);
    piece(begin, last);
    begin = last;
  }
}

}  // namespace tessera
