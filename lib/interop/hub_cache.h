// SPDX-License-Identifier: MIT
#pragma once
// Models and tokenizers by their names on the Hugging Face Hub, as other programs have fetched them
// to this machine. Nothing is downloaded.
#include <string>

namespace tessera::programs {

// "gpt2" or "bigscience/bloom-560m"; paths are none.
bool looks_like_hub_name(const std::string& name);

// The snapshot of the name's main branch in the cache of huggingface_hub (HF_HUB_CACHE, HF_HOME,
// ~/.cache/huggingface/hub); the name itself where it exists as a path or is in no cache.
std::string find_in_hub_cache(const std::string& name);

// What to do about a name that is not there: ". ... fetch it first: hf download NAME"; "" for a
// path.
std::string how_to_fetch(const std::string& name);

}  // namespace tessera::programs
