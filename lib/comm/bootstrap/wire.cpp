#include "lib/comm/bootstrap/wire.h"

#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <random>

#include "tessera/core/error.h"
#include "tessera/core/hash.h"

namespace tessera::control {
namespace {

constexpr const char* kProtocol = "tessera 2";
constexpr size_t kHeader = 5;
constexpr uint32_t kLongest = 256U << 20;

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

int number_of(const std::string& text) {
  int number = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  check(result.ec == std::errc() && result.ptr == end, ErrorCode::kUnavailable,
        "control channel: a hello whose rank or world size is no number");
  return number;
}

bool receive_exactly(int fd, char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t n = ::recv(fd, bytes, size, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

bool send_frame(const Socket& socket, Kind kind, const std::string& payload) {
  std::string bytes(1, static_cast<char>(kind));
  bytes += pack_length(payload.size()) + payload;
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n = ::send(socket.fd(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    sent += static_cast<size_t>(n);
  }
  return true;
}

std::optional<Frame> receive_frame(const Socket& socket) {
  std::string bytes(kHeader, '\0');
  if (!receive_exactly(socket.fd(), bytes.data(), kHeader)) return std::nullopt;
  const uint32_t size = unpack_length(bytes.data() + 1);
  if (size > kLongest) return std::nullopt;
  Frame frame{static_cast<Kind>(bytes[0]), std::string(size, '\0')};
  if (!receive_exactly(socket.fd(), frame.payload.data(), size)) return std::nullopt;
  return frame;
}

std::optional<Frame> take_frame(std::string& received) {
  if (received.size() < kHeader) return std::nullopt;
  const uint32_t size = unpack_length(received.data() + 1);
  check(size <= kLongest, ErrorCode::kUnavailable, "control channel: a frame of ", size, " bytes");
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
  return control::pack(
      {kProtocol, job, proof, std::to_string(rank), std::to_string(world_size), host, random});
}

Hello Hello::unpack(const std::string& bytes) {
  const std::vector<std::string> parts = control::unpack(bytes);
  check(parts.size() == 7 && parts[0] == kProtocol, ErrorCode::kUnavailable,
        "control channel: not a hello of this version");
  return {parts[1], parts[2], number_of(parts[3]), number_of(parts[4]), parts[5], parts[6]};
}

std::string random_text() {
  std::random_device device;
  std::string text;
  for (int i = 0; i < 2; ++i) text += hex64(uint64_t{device()} << 32 | device());
  return text;
}

std::string proof_of(const std::string& challenge, const std::string& secret,
                     const std::string& who) {
  return sha256_hex(concat("tessera ", who, " ", challenge, " ", secret));
}

}  // namespace tessera::control
