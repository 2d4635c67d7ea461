// SPDX-License-Identifier: MIT
#pragma once
// Parts of tokenizer.json. All functions throw Error(kDataLoss) with the position for anything not
// fully understood.
#include <string>
#include <string_view>
#include <vector>

#include "lib/data/metaspace.h"
#include "tessera/core/json.h"

namespace tessera {

std::string type_of(const Json& part);
// Steps of a "Sequence", or the single step itself.
std::vector<Json> steps_of(const Json& part, std::string_view list);

// Steps of the normalizer; empty without one.
Normalizer read_normalizer(const Json& file);
// True if BPE starts from characters, and from bytes for unknown ones: with the pre-tokenizer
// Metaspace, or a normalizer that alone writes spaces as U+2581.
bool merges_characters(const Json& file);
Metaspace read_metaspace(const Json& pre_tokenizer);
// Decoder of Replace, ByteFallback, Fuse and optionally Strip; true if Strip removes one leading
// space.
bool read_fallback_decoder(const Json& file);

}  // namespace tessera
