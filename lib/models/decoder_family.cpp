// SPDX-License-Identifier: MIT
#include "lib/models/decoder_family.h"

#include <algorithm>
#include <array>

#include "lib/core/joined.h"
#include "lib/models/decoder_blocks.h"
#include "tessera/core/error.h"

namespace tessera {

std::span<const DecoderFamily* const> decoder_families() {
  static const std::array families{&bloom_family(),     &glm4_moe_family(), &gpt2_family(),
                                   &gpt_oss_family(),   &llama_family(),    &mistral_family(),
                                   &mixtral_family(),   &olmoe_family(),    &qwen2_family(),
                                   &qwen2_moe_family(), &qwen3_family(),    &qwen3_moe_family()};
  return families;
}

const DecoderFamily* find_family(const std::string& model_type) {
  const auto families = decoder_families();
  const auto found = std::ranges::find(families, model_type, &DecoderFamily::model_type);
  return found == families.end() ? nullptr : *found;
}

std::string unknown_family(const std::string& model_type) {
  std::vector<std::string> known;
  for (const DecoderFamily* family : decoder_families()) known.push_back(family->model_type);
  return concat("model type \"", model_type, "\" is not supported; supported are ", joined(known));
}

const DecoderFamily& family_of(const std::string& model_type) {
  const DecoderFamily* family = find_family(model_type);
  if (family == nullptr) fail(ErrorCode::kInvalidArgument, unknown_family(model_type));
  return *family;
}

std::string table_name(const DecoderConfig& config) { return family_of(config).table + ".weight"; }

std::string checkpoint_name(const DecoderFamily& family, const std::string& block,
                            const std::string& parameter) {
  if (parameter == "lm_head.weight" || parameter == "score.weight") return parameter;
  return family.checkpoint_prefix + (block.starts_with(family.layers) ? block + "." : "") +
         parameter;
}

}  // namespace tessera
