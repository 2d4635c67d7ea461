#pragma once
// Parts of tokenizer.json. All of it throws Error(kDataLoss) with the place for what is not
// understood exactly.
#include <optional>
#include <string>
#include <vector>

#include "lib/data/metaspace.h"
#include "tessera/core/json.h"

namespace tessera {

std::string type_of(const Json& part);
// The steps of a "Sequence", or the single step itself.
std::vector<Json> steps_of(const Json& part, std::string_view list);

// How the normalizer (Llama 2: Prepend, Replace) or the pre-tokenizer writes spaces as U+2581;
// nullopt when neither does.
std::optional<Metaspace> read_metaspace(const Json& file);
// Replace, ByteFallback, Fuse, and perhaps Strip; true when that takes one space from the start.
bool read_fallback_decoder(const Json& file);

}  // namespace tessera
