// SPDX-License-Identifier: MIT
#pragma once
#include "tessera/generation/generate.h"

namespace tessera {

// Prefill with a cache: packed prompts, or each padded to the longest of its batch. generate()
// packs them on GPUs.
enum class Beginnings { kPadded, kPacked };

// generate() with this kind of prefill.
std::vector<GeneratedRow> generate_by(Beginnings beginnings, Strategy& strategy,
                                      const DeviceMesh& mesh,
                                      std::span<const std::vector<int64_t>> prompts,
                                      const GenerationOptions& options);

}  // namespace tessera
