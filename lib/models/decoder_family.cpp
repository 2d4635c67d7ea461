#include "lib/models/decoder_family.h"

#include <array>

#include "lib/core/joined.h"
#include "lib/models/decoder_blocks.h"
#include "tessera/core/error.h"

namespace tessera {

std::span<const DecoderFamily* const> decoder_families() {
  static const std::array families{&bloom_family(),   &gpt2_family(),  &llama_family(),
                                   &mistral_family(), &qwen2_family(), &qwen3_family()};
  return families;
}

const DecoderFamily& family_of(const std::string& model_type) {
  std::vector<std::string> known;
  for (const DecoderFamily* family : decoder_families()) {
    if (family->model_type == model_type) return *family;
    known.push_back(family->model_type);
  }
  fail(ErrorCode::kInvalidArgument, "model type \"", model_type,
       "\" is not supported; supported are ", joined(known));
}

std::string table_name(const DecoderConfig& config) { return family_of(config).table + ".weight"; }

std::string checkpoint_name(const DecoderFamily& family, const std::string& block,
                            const std::string& parameter) {
  if (parameter == "lm_head.weight" || parameter == "score.weight") return parameter;
  return family.checkpoint_prefix + (block.starts_with(family.layers) ? block + "." : "") +
         parameter;
}

}  // namespace tessera
