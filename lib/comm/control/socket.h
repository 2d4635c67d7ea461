// SPDX-License-Identifier: MIT
#pragma once
// TCP sockets: an owned descriptor, listening, connecting, addresses.
#include <chrono>
#include <optional>
#include <string>
#include <utility>

namespace tessera::control {

using Clock = std::chrono::steady_clock;

// An owned file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();
  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  void shut_down();  // wakes a thread that reads

 private:
  int fd_ = -1;
};

// For messages: "host:port", "[::1]:port".
std::string place_text(const std::string& host, int port);

// Listens at host:port (port 0: any free one; host "": every interface). An empty result when the
// port is taken; Error(kInvalidArgument) naming address and reason when the host is not ours.
std::optional<Socket> try_listen(const std::string& host, int port);
// The same; a taken port is an error too.
Socket listen_at(const std::string& host, int port);
int port_of(const Socket& listener);

// One attempt; not open after timeout_s or when refused, and why says the reason. Throws
// Error(kInvalidArgument) when the host name does not resolve.
Socket try_connect(const std::string& host, int port, double timeout_s, std::string& why);
// Tries until `whom` accepts; Error(kUnavailable) naming it, the address and the last reason after
// timeout_s.
Socket connect_to(const std::string& host, int port, double timeout_s, const std::string& whom);

// A peer whose host is lost ends the connection within about half a minute: probes while idle
// (keepalive), and a limit on bytes that nobody acknowledges. For sockets whose peer always reads:
// the limit also counts while its window is closed.
void notice_lost_host(const Socket& socket);
void never_block(const Socket& socket);

std::string local_address(const Socket& socket);  // numeric
bool is_loopback(const std::string& numeric_address);
bool resolves_to_loopback(const std::string& host);  // false for a name that does not resolve

// The address under which other hosts reach this one: TESSERA_HOST_ADDRESS (an address, a host name
// or an interface), else what `hint` resolves to when that is an address of this host and no
// loopback, else what the host's own name resolves to in the same way (it is 127.0.1.1 on many
// hosts), else that of the first interface. Throws Error(kInvalidArgument) when there is none.
std::string address_for_others(const std::string& hint);

}  // namespace tessera::control
