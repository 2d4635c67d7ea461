// SPDX-License-Identifier: MIT
#pragma once
// Hash of a manifest over all its previous bytes, stored as its last member.
#include <string>
#include <string_view>

#include "lib/core/hash.h"
#include "tessera/core/error.h"

namespace tessera {

inline std::string manifest_seal(std::string_view before) {
  return ",\"xxh3\":\"" + xxh3_128(before.data(), before.size()).hex() + "\"}\n";
}

// Appends the hash to a JSON object in one line.
inline std::string sealed(std::string object) {
  object.pop_back();
  return object + manifest_seal(object);
}

// Throws Error(kDataLoss) unless the text was made by sealed() and is unchanged.
inline void check_seal(std::string_view text, const std::string& origin) {
  const size_t length = manifest_seal("").size();
  const size_t split = text.size() - std::min(length, text.size());
  check(text.size() > length && text.substr(split) == manifest_seal(text.substr(0, split)),
        ErrorCode::kDataLoss, origin,
        ": its last member is not the XXH3 of the bytes before it; the file is damaged, cut short, "
        "or was edited");
}

}  // namespace tessera
