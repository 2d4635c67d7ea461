// SPDX-License-Identifier: MIT
#include "lib/program/block_parts.h"

#include <algorithm>

#include "tessera/core/error.h"

namespace tessera::program {

size_t BlockParts::place_of(const std::string& used) const {
  const std::string& owner = owner_of.at(used);
  const auto found = std::find_if(parameters.begin(), parameters.end(),
                                  [&](const auto& one) { return one.entry.name == owner; });
  check(found != parameters.end(), ErrorCode::kInternal, "block ", name, " has no parameter ",
        owner);
  return static_cast<size_t>(found - parameters.begin());
}

}  // namespace tessera::program
