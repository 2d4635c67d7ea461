// SPDX-License-Identifier: MIT
#pragma once
// Amounts of memory in flags.
#include <optional>
#include <string>

namespace tessera::programs {

constexpr double kMostMemory = 0x1p60;  // bytes

// Bytes of "80GiB", "24000 MB", "1.5tib". Empty for a text that is not a positive number with a
// unit, or exceeds kMostMemory. plain: unit of a bare number in bytes; 0: a unit is required.
std::optional<double> parse_memory_size(const std::string& text, double plain = 0);

// Memory for one rank's activations, or its offloaded state kept on the device.
struct MemoryShare {
  bool automatic = false;  // the device's free memory
  double bytes = 0;        // otherwise
};
// Parses --activation_memory; empty for "". A bare number is in GiB. Throws
// Error(kInvalidArgument).
std::optional<MemoryShare> parse_activation_memory(const std::string& text);

// Parses --offload_keep_on_gpu likewise; 0 means none, "" auto.
std::optional<MemoryShare> parse_offload_gpu_memory(const std::string& text);

}  // namespace tessera::programs
