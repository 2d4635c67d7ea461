// SPDX-License-Identifier: MIT
#pragma once
#include "tessera/generation/generate.h"

namespace tessera {

// How prompts pass through the model, where rows have a cache: end to end, or each filled up to the
// longest of its batch. generate() packs them on GPUs.
enum class Beginnings { kPadded, kPacked };

// generate(), told how.
std::vector<GeneratedRow> generate_by(Beginnings beginnings, Strategy& strategy,
                                      const DeviceMesh& mesh,
                                      std::span<const std::vector<int64_t>> prompts,
                                      const GenerationOptions& options);

}  // namespace tessera
