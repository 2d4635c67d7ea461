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

// "host:port" or "[::1]:port", for messages.
std::string place_text(const std::string& host, int port);

// Listens at host:port (port 0: any free one; host "": every interface). Empty when the port is
// taken. Throws Error(kInvalidArgument) with address and reason when the host is not this one.
std::optional<Socket> try_listen(const std::string& host, int port);
// As try_listen(), but throws when the port is taken.
Socket listen_at(const std::string& host, int port);
int port_of(const Socket& listener);

// One attempt. The socket is not open after timeout_s or a refusal; `why` tells the reason. Throws
// Error(kInvalidArgument) when the host name does not resolve.
Socket try_connect(const std::string& host, int port, double timeout_s, std::string& why);
// Retries until `whom` accepts. Throws Error(kUnavailable) with its name, address and last reason
// after timeout_s.
Socket connect_to(const std::string& host, int port, double timeout_s, const std::string& whom);

// Makes the kernel drop the connection to a lost host within about 30 s: keepalive probes while
// idle, and a limit on unacknowledged bytes. For peers that always read: the limit also counts
// while the peer's window is closed.
void notice_lost_host(const Socket& socket);
void never_block(const Socket& socket);

std::string local_address(const Socket& socket);  // numeric form
bool is_loopback(const std::string& numeric_address);
bool resolves_to_loopback(const std::string& host);  // false for names that do not resolve

// The address under which other hosts reach this one. Tried in this order: TESSERA_HOST_ADDRESS (an
// address, a host name or an interface); `hint`; the host's own name (127.0.1.1 on many hosts); the
// first interface. `hint` and the own name must resolve to a non-loopback address of this host.
// Throws Error(kInvalidArgument) when there is none.
std::string address_for_others(const std::string& hint);

}  // namespace tessera::control
