// SPDX-License-Identifier: MIT
#pragma once
// Finds models and tokenizers by Hugging Face Hub name in this machine's cache. Downloads nothing.
#include <string>

namespace tessera::programs {

// True for "gpt2" or "bigscience/bloom-560m", false for paths.
bool looks_like_hub_name(const std::string& name);

// Snapshot of the main branch in huggingface_hub's cache (HF_HUB_CACHE, HF_HOME,
// ~/.cache/huggingface/hub). The name itself if it exists as a path or is not cached.
std::string find_in_hub_cache(const std::string& name);

// Advice for a name that is not cached: ". ... fetch it first: hf download NAME"; "" for a path.
std::string how_to_fetch(const std::string& name);

}  // namespace tessera::programs
