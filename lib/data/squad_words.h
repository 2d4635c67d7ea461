// SPDX-License-Identifier: MIT
#pragma once
// Normalised words of an answer, as SQuAD's official scripts compare them.
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Lower case, without ASCII punctuation and articles; letters, words and spaces as in Python's str.
// text: valid UTF-8.
std::vector<std::string> squad_words(std::string_view text);

}  // namespace tessera
