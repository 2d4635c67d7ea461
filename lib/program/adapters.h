// SPDX-License-Identifier: MIT
#pragma once
// LoRA beside the linear layers of a block (tessera/model/lora.h).
#include <memory>
#include <string>
#include <vector>

#include "lib/program/block_parts.h"
#include "lib/program/manifest.h"
#include "tessera/model/lora.h"

namespace tessera::program {

// The block with adapters: behind each linear layer that the rule targets, y + scale B A x. A layer
// is called as the Hub calls its weight. all-linear means modules of a linear class but the one
// that makes the scores.
std::shared_ptr<const BlockParts> with_adapters(const BlockParts& block, const LoraRule& rule);

// PEFT's targets for models of this type in config.json; empty: it has none.
std::vector<std::string> default_targets(const std::string& model_type);

}  // namespace tessera::program
