// SPDX-License-Identifier: MIT
#include "lib/core/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>

#include "lib/core/file.h"

namespace tessera {

std::string hex64(uint64_t value) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text(16, '0');
  for (size_t i = 0; i < 16; ++i) text[i] = kDigits[(value >> (60 - 4 * i)) & 15];
  return text;
}

std::string Hash128::hex() const { return hex64(high) + hex64(low); }

uint64_t xxh3_64(const void* data, size_t size, uint64_t seed) {
  return XXH3_64bits_withSeed(data, size, seed);
}

Hash128 xxh3_128(const void* data, size_t size) {
  const XXH128_hash_t hash = XXH3_128bits(data, size);
  return {hash.high64, hash.low64};
}

struct Xxh3Stream::State {
  XXH3_state_t xxh;
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh); }
Xxh3Stream::~Xxh3Stream() = default;
Xxh3Stream::Xxh3Stream(Xxh3Stream&&) noexcept = default;
Xxh3Stream& Xxh3Stream::operator=(Xxh3Stream&&) noexcept = default;

Hash128 hash_file(const std::string& path) {
  Xxh3Stream hash;
  for_each_piece(path, [&](std::string_view piece) { hash.update(piece.data(), piece.size()); });
  return hash.digest128();
}

// The 64-bit and 128-bit hashes read input identically and differ only in the digest.
void Xxh3Stream::update(const void* data, size_t size) {
  XXH3_128bits_update(&state_->xxh, data, size);
}

uint64_t Xxh3Stream::digest64() const { return XXH3_64bits_digest(&state_->xxh); }

Hash128 Xxh3Stream::digest128() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh);
  return {hash.high64, hash.low64};
}

namespace {

// SHA-256, FIPS 180-4.
constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

void sha256_block(std::array<uint32_t, 8>& hash, const unsigned char* block) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) {
    w[i] = uint32_t{block[4 * i]} << 24 | uint32_t{block[4 * i + 1]} << 16 |
           uint32_t{block[4 * i + 2]} << 8 | block[4 * i + 3];
  }
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = hash;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::array<uint32_t, 8> mixed = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) hash[i] += mixed[i];
}

// Accepts the bytes in pieces of any size.
class Sha256 {
 public:
  void update(std::string_view bytes) {
    size_ += bytes.size();
    if (!rest_.empty()) {
      const size_t missing = std::min(bytes.size(), 64 - rest_.size());
      rest_ += bytes.substr(0, missing);
      bytes.remove_prefix(missing);
      if (rest_.size() < 64) return;
      block(rest_.data());
      rest_.clear();
    }
    for (; bytes.size() >= 64; bytes.remove_prefix(64)) block(bytes.data());
    rest_ = bytes;
  }

  std::string hex() {
    finish();
    std::string text;
    for (size_t i = 0; i < 8; i += 2) text += hex64(uint64_t{hash_[i]} << 32 | hash_[i + 1]);
    return text;
  }

  std::string bytes() {
    finish();
    std::string text;
    for (const uint32_t word : hash_) {
      for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(word >> shift);
    }
    return text;
  }

 private:
  // Padding: a one bit, zeros, and the length in bits as the last 8 bytes.
  void finish() {
    std::string tail = rest_ + '\x80';
    tail.resize(tail.size() <= 56 ? 56 : 120);
    for (int i = 7; i >= 0; --i) tail += static_cast<char>(size_ * 8 >> (8 * i));
    for (size_t at = 0; at < tail.size(); at += 64) block(tail.data() + at);
  }
  void block(const char* bytes) {
    sha256_block(hash_, reinterpret_cast<const unsigned char*>(bytes));
  }

  std::array<uint32_t, 8> hash_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint64_t size_ = 0;
  std::string rest_;
};

}  // namespace

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

std::string hmac_sha256_hex(std::string_view key, std::string_view message) {
  std::string padded(key);
  if (key.size() > 64) {
    Sha256 hash;
    hash.update(key);
    padded = hash.bytes();
  }
  padded.resize(64, '\0');
  const auto hash_of = [&padded](char pad, std::string_view bytes) {
    std::string masked = padded;
    for (char& byte : masked) byte = static_cast<char>(byte ^ pad);
    Sha256 hash;
    hash.update(masked);
    hash.update(bytes);
    return hash;
  };
  return hash_of('\x5c', hash_of('\x36', message).bytes()).hex();
}

std::string sha256_file_hex(const std::string& path) {
  Sha256 hash;
  for_each_piece(path, [&](std::string_view piece) { hash.update(piece); });
  return hash.hex();
}

}  // namespace tessera
