// SPDX-License-Identifier: MIT
#pragma once
// What somebody may have meant by a name that is not there.
#include <string>
#include <vector>

namespace tessera {

// The candidate that is a slip of the hand away from name; "" when none is.
std::string nearest_name(const std::string& name, const std::vector<std::string>& candidates);
// "; the nearest is X", or nothing.
std::string nearest_hint(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace tessera
