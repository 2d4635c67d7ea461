// SPDX-License-Identifier: MIT
#pragma once
// Parts of tokenizer.json. All of it throws Error(kDataLoss) with the place for what is not
// understood exactly.
#include <string>
#include <string_view>
#include <vector>

#include "lib/data/metaspace.h"
#include "tessera/core/json.h"

namespace tessera {

std::string type_of(const Json& part);
// The steps of a "Sequence", or the single step itself.
std::vector<Json> steps_of(const Json& part, std::string_view list);

// Steps of the normalizer; without one there are none.
Normalizer read_normalizer(const Json& file);
// Whether BPE begins with characters, and bytes where they are no tokens: behind the pre-tokenizer
// Metaspace, or where a normalizer alone writes spaces as U+2581.
bool merges_characters(const Json& file);
Metaspace read_metaspace(const Json& pre_tokenizer);
// Replace, ByteFallback, Fuse, and perhaps Strip; true when that takes one space from the start.
bool read_fallback_decoder(const Json& file);

}  // namespace tessera
