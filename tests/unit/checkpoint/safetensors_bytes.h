// SPDX-License-Identifier: MIT
#pragma once
// Hand-made safetensors files, so that tests can make invalid ones.
#include <cstdint>
#include <string>

inline std::string little_endian(uint64_t value) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  return bytes;
}

// A file with this JSON header and that many bytes of data.
inline std::string safetensors_bytes(const std::string& header, size_t data_bytes) {
  return little_endian(header.size()) + header + std::string(data_bytes, '\x01');
}
