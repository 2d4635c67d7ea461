// SPDX-License-Identifier: MIT
#pragma once
// Fingerprints: XXH3 for checkpoints and parameters, SHA-256 for data sets.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tessera {

uint64_t xxh3_64(const void* data, size_t size, uint64_t seed = 0);

struct Hash128 {
  uint64_t high = 0;
  uint64_t low = 0;
  std::string hex() const;  // 32 hex digits, high part first, as xxh128sum prints
  bool operator==(const Hash128&) const = default;
};
Hash128 xxh3_128(const void* data, size_t size);
// Hash of a regular file of any size. Throws Error(kDataLoss) when it cannot be read.
Hash128 hash_file(const std::string& path);

// Streaming XXH3: any split into update() calls gives the same hash.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(Xxh3Stream&&) noexcept;
  Xxh3Stream& operator=(Xxh3Stream&&) noexcept;
  void update(const void* data, size_t size);
  uint64_t digest64() const;
  Hash128 digest128() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string sha256_hex(std::string_view bytes);
std::string hmac_sha256_hex(std::string_view key, std::string_view message);  // RFC 2104
// Throws Error(kDataLoss) when it cannot be read.
std::string sha256_file_hex(const std::string& path);

// 16 lower-case hex digits.
std::string hex64(uint64_t value);

}  // namespace tessera
