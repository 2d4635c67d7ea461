// SPDX-License-Identifier: MIT
#pragma once
// What SQuAD's official scripts compare of an answer.
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// In lower case, without ASCII punctuation and articles; letters, words and space are those of
// Python's str. The text is valid UTF-8.
std::vector<std::string> squad_words(std::string_view text);

}  // namespace tessera
