// SPDX-License-Identifier: MIT
#pragma once
// Suggestions for misspelled names.
#include <string>
#include <vector>

namespace tessera {

// The candidate within a typing error of name; "" for none.
std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates);
// "; the nearest is X", or "".
std::string nearest_hint(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace tessera
