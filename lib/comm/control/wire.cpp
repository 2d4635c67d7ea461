// SPDX-License-Identifier: MIT
#include "lib/comm/control/wire.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <random>

#include "lib/core/hash.h"
#include "tessera/core/error.h"

namespace tessera::control {
namespace {

constexpr const char* kProtocol = "tessera 4";
constexpr size_t kHeader = 5;

std::string pack_length(size_t size) {
  std::string bytes(4, '\0');
  for (int i = 0; i < 4; ++i) bytes[i] = static_cast<char>(size >> (8 * i));
  return bytes;
}

uint32_t unpack_length(const char* bytes) {
  uint32_t size = 0;
  for (int i = 0; i < 4; ++i) size |= uint32_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  return size;
}

// Parses a number; every character must belong to it.
template <typename Number>
Number number_of(const std::string& text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc() && end == text.data() + text.size(), ErrorCode::kUnavailable,
        "control channel: not a number");
  return value;
}

// Appends received bytes until there are `size` of them, then returns kFrame.
Reception receive_until(int fd, std::string& bytes, size_t size, Clock::time_point deadline) {
  char piece[4096];
  while (bytes.size() < size) {
    const ssize_t n = ::recv(fd, piece, std::min(sizeof piece, size - bytes.size()), MSG_DONTWAIT);
    if (n > 0) {
      bytes.append(piece, static_cast<size_t>(n));
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n == 0 || errno != EAGAIN) return bytes.empty() ? Reception::kClosed : Reception::kForeign;
    const auto left = deadline - Clock::now();
    if (left <= Clock::duration::zero()) return Reception::kSilent;
    pollfd wait{fd, POLLIN, 0};
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    ::poll(&wait, 1, static_cast<int>(std::min<int64_t>(ms, 1000)));
  }
  return Reception::kFrame;
}

}  // namespace

std::string frame_bytes(Kind kind, const std::string& payload) {
  return std::string(1, static_cast<char>(kind)) + pack_length(payload.size()) + payload;
}

bool send_frame(const Socket& socket, Kind kind, const std::string& payload) {
  const std::string bytes = frame_bytes(kind, payload);
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n = ::send(socket.fd(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    sent += static_cast<size_t>(n);
  }
  return true;
}

Received receive_frame(const Socket& socket, double seconds, size_t most) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(seconds));
  std::string bytes;
  Reception how = receive_until(socket.fd(), bytes, kHeader, deadline);
  if (how != Reception::kFrame) return {how};
  const uint32_t size = unpack_length(bytes.data() + 1);
  if (size > most) return {Reception::kForeign};
  how = receive_until(socket.fd(), bytes, kHeader + size, deadline);
  if (how != Reception::kFrame) return {how};
  return {how, {static_cast<Kind>(bytes[0]), bytes.substr(kHeader)}};
}

std::optional<Frame> take_frame(std::string& received, size_t most) {
  if (received.size() < kHeader) return std::nullopt;
  const uint32_t size = unpack_length(received.data() + 1);
  check(size <= most, ErrorCode::kUnavailable, "control channel: a frame of ", size, " bytes");
  if (received.size() < kHeader + size) return std::nullopt;
  Frame frame{static_cast<Kind>(received[0]), received.substr(kHeader, size)};
  received.erase(0, kHeader + size);
  return frame;
}

std::string pack(const std::vector<std::string>& list) {
  std::string bytes;
  for (const std::string& item : list) bytes += pack_length(item.size()) + item;
  return bytes;
}

std::vector<std::string> unpack(const std::string& bytes) {
  std::vector<std::string> list;
  for (size_t at = 0; at < bytes.size();) {
    check(bytes.size() - at >= 4, ErrorCode::kUnavailable, "control channel: a torn list");
    const uint32_t size = unpack_length(bytes.data() + at);
    check(bytes.size() - at - 4 >= size, ErrorCode::kUnavailable, "control channel: a torn list");
    list.push_back(bytes.substr(at + 4, size));
    at += 4 + size;
  }
  return list;
}

std::string Hello::pack() const {
  return control::pack({kProtocol, job, proof, std::to_string(rank), std::to_string(world_size),
                        host, random, kin.host, kin.start});
}

Hello Hello::unpack(const std::string& bytes) {
  const std::vector<std::string> parts = control::unpack(bytes);
  check(parts.size() == 9 && parts[0] == kProtocol, ErrorCode::kUnavailable,
        "control channel: not a hello of this version");
  return {parts[1], parts[2], number_of<int>(parts[3]), number_of<int>(parts[4]),
          parts[5], parts[6], {parts[7], parts[8]}};
}

std::string Admission::pack() const {
  return control::pack({proof, host, concat(heartbeat_timeout_s)});
}

Admission Admission::unpack(const std::string& bytes) {
  const std::vector<std::string> parts = control::unpack(bytes);
  check(parts.size() == 3, ErrorCode::kUnavailable, "control channel: not an admission");
  return {parts[0], parts[1], number_of<double>(parts[2])};
}

std::string random_text() {
  std::random_device device;
  std::string text;
  for (int i = 0; i < 2; ++i) text += hex64(uint64_t{device()} << 32 | device());
  return text;
}

std::string proof_of(const std::string& challenge, const std::string& secret,
                     const std::string& who) {
  return hmac_sha256_hex(secret, pack({kProtocol, who, challenge}));
}

}  // namespace tessera::control
