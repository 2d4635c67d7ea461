// SPDX-License-Identifier: MIT
#pragma once
// Amounts of memory, as flags take them.
#include <optional>
#include <string>

namespace tessera::programs {

constexpr double kMostMemory = 0x1p60;  // bytes

// Bytes of "80GiB", "24000 MB", "1.5tib"; nothing where the text is no number above 0 and its unit,
// or says more than kMostMemory. plain: the unit of a number alone, 0: there must be one.
std::optional<double> parse_memory_size(const std::string& text, double plain = 0);

// What one rank's activations may take, or its share of offloaded state.
struct MemoryShare {
  bool automatic = false;  // what its device has left
  double bytes = 0;        // else
};
// Of --activation_memory: nothing for "". A number alone is GiB. Throws Error(kInvalidArgument).
std::optional<MemoryShare> parse_activation_memory(const std::string& text);

// Of --offload_gpu_memory, the same with 0 for nothing.
std::optional<MemoryShare> parse_offload_gpu_memory(const std::string& text);

}  // namespace tessera::programs
