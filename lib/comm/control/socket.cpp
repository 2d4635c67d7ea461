// SPDX-License-Identifier: MIT
#include "lib/comm/control/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "tessera/core/error.h"

namespace tessera::control {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// A name server may not know a host yet that has just started.
constexpr auto kNameGrace = std::chrono::seconds(3);

Addresses resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (host.empty() ? AI_PASSIVE : 0);
  const auto deadline = Clock::now() + kNameGrace;
  while (true) {
    addrinfo* found = nullptr;
    const int rc = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(),
                               &hints, &found);
    if (rc == 0) return Addresses(found, &freeaddrinfo);
    check(Clock::now() < deadline, ErrorCode::kInvalidArgument, "control channel: cannot resolve '",
          host, "': ", gai_strerror(rc),
          "; set MASTER_ADDR to the name or address of rank 0's host");
    ::poll(nullptr, 0, 200);
  }
}

// Connects within timeout_s; returns 0 or an errno.
int connect_within(int fd, const addrinfo& address, double timeout_s) {
  const int flags = fcntl(fd, F_GETFL);
  fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  int error = ::connect(fd, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd wait{fd, POLLOUT, 0};
    error = ETIMEDOUT;
    if (::poll(&wait, 1, static_cast<int>(timeout_s * 1000)) > 0) {
      socklen_t length = sizeof error;
      getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    }
  }
  fcntl(fd, F_SETFL, flags);
  return error;
}

void set_option(const Socket& socket, int level, int option, int value) {
  setsockopt(socket.fd(), level, option, &value, sizeof value);
}

// IPv6 first when listening on every interface: such a listener also accepts IPv4.
std::vector<const addrinfo*> listening_order(const addrinfo* first, bool every_interface) {
  std::vector<const addrinfo*> order;
  for (const addrinfo* a = first; a != nullptr; a = a->ai_next) order.push_back(a);
  if (every_interface) {
    std::ranges::stable_partition(order,
                                  [](const addrinfo* a) { return a->ai_family == AF_INET6; });
  }
  return order;
}

}  // namespace

std::string place_text(const std::string& host, int port) {
  if (host.empty()) return concat("every interface:", port);
  const bool ipv6 = host.find(':') != std::string::npos;
  return concat(ipv6 ? "[" : "", host, ipv6 ? "]:" : ":", port);
}

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

std::optional<Socket> try_listen(const std::string& host, int port) {
  const Addresses addresses = resolve(host, port);
  int error = 0;
  for (const addrinfo* a : listening_order(addresses.get(), host.empty())) {
    Socket socket(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
    if (!socket.open()) continue;
    set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
    if (a->ai_family == AF_INET6)
      set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, host.empty() ? 0 : 1);
    if (bind(socket.fd(), a->ai_addr, a->ai_addrlen) == 0 && listen(socket.fd(), SOMAXCONN) == 0) {
      return socket;
    }
    error = errno;
  }
  if (error == EADDRINUSE) return std::nullopt;
  fail(ErrorCode::kInvalidArgument, "control channel: rank 0 cannot listen at ",
       place_text(host, port), ": ", std::strerror(error),
       error == EADDRNOTAVAIL
           ? "; that is no address of this host: set MASTER_ADDR to one, or name "
             "the one to listen at in TESSERA_HOST_ADDRESS"
           : "; choose another MASTER_PORT or MASTER_ADDR");
}

Socket listen_at(const std::string& host, int port) {
  auto socket = try_listen(host, port);
  check(socket.has_value(), ErrorCode::kInvalidArgument,
        "control channel: rank 0 cannot listen at ", place_text(host, port), ": ",
        std::strerror(EADDRINUSE),
        "; another job or program has this port: choose another MASTER_PORT");
  return std::move(*socket);
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

Socket try_connect(const std::string& host, int port, double timeout_s, std::string& why) {
  const Addresses addresses = resolve(host, port);
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    Socket socket(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
    if (!socket.open()) continue;
    const int error = connect_within(socket.fd(), *a, timeout_s);
    why = std::strerror(error);
    if (error != 0) continue;
    set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
    return socket;
  }
  return Socket();
}

Socket connect_to(const std::string& host, int port, double timeout_s, const std::string& whom) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s);
  while (true) {
    std::string why;
    Socket socket = try_connect(host, port, std::min(timeout_s, 5.0), why);
    if (socket.open()) return socket;
    check(Clock::now() < deadline, ErrorCode::kUnavailable, whom, " did not answer at ",
          place_text(host, port), " within ", timeout_s, " s (", why,
          "); is it running, and can the hosts reach each other there? TESSERA_HOST_ADDRESS names "
          "another address");
    ::poll(nullptr, 0, 20);  // the peer may not listen yet
  }
}

void notice_lost_host(const Socket& socket) {
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);  // milliseconds; ends keepalive too
}

void never_block(const Socket& socket) {
  fcntl(socket.fd(), F_SETFL, fcntl(socket.fd(), F_GETFL) | O_NONBLOCK);
}

}  // namespace tessera::control
