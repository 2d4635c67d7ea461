#include "lib/comm/bootstrap/wire.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include "tessera/core/error.h"
#include "tessera/core/hash.h"

namespace tessera::control {
namespace {

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

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int rc = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  check(rc == 0, ErrorCode::kInvalidArgument, "control channel: cannot resolve '", host,
        "': ", gai_strerror(rc), "; set MASTER_ADDR to the name or address of rank 0's host");
  return Addresses(found, &freeaddrinfo);
}

void no_delay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
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

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

void Socket::shut_down() {
  if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
}

Socket listen_at(const std::string& host, int port) {
  const Addresses addresses = resolve(host, port);
  int error = 0;
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    Socket socket(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
    if (!socket.open()) continue;
    const int on = 1;
    setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(socket.fd(), a->ai_addr, a->ai_addrlen) == 0 && listen(socket.fd(), 1024) == 0) {
      return socket;
    }
    error = errno;
  }
  fail(ErrorCode::kInvalidArgument, "control channel: rank 0 cannot listen at ", host, ":", port,
       ": ", std::strerror(error), "; choose another MASTER_PORT or MASTER_ADDR");
}

int port_of(const Socket& listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &length);
  char port[16] = "0";
  getnameinfo(reinterpret_cast<sockaddr*>(&address), length, nullptr, 0, port, sizeof port,
              NI_NUMERICSERV);
  return std::stoi(port);
}

Socket connect_to(const std::string& host, int port, double timeout_s) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
  const Addresses addresses = resolve(host, port);
  while (true) {
    int error = 0;
    for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
      Socket socket(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
      if (socket.open() && ::connect(socket.fd(), a->ai_addr, a->ai_addrlen) == 0) {
        no_delay(socket.fd());
        return socket;
      }
      error = errno;
    }
    check(std::chrono::steady_clock::now() < deadline, ErrorCode::kUnavailable,
          "control channel: nobody answered at ", host, ":", port, " within ", timeout_s, " s (",
          std::strerror(error), "); is rank 0 running there?");
    ::poll(nullptr, 0, 20);  // rank 0 may not listen yet
  }
}

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

std::string proof_of(const std::string& challenge, const std::string& secret, int rank) {
  return sha256_hex(concat("tessera ", rank, " ", challenge, " ", secret));
}

}  // namespace tessera::control
