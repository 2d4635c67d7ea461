#pragma once
// TCP sockets and the frames of the control channel.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::control {

// Frame: one byte kind, four bytes little-endian length, payload.
enum class Kind : uint8_t {
  kChallenge,  // hub: random bytes
  kHello,      // rank: list {protocol, proof, rank, world size, host}
  kWelcome,    // hub: all ranks are here
  kRefuse,     // hub: reason
  kExchange,   // rank: bytes; hub: list by rank
  kConclude,   // rank: status; hub: list by rank
  kPost,       // rank: list {key, value}
  kTake,       // rank: key; hub: list {key, value}
  kAbort,      // both: reason
  kBye,        // rank: about to close
};
struct Frame {
  Kind kind;
  std::string payload;
};

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

// Listens at host:port (port 0: any free one). Throws Error(kInvalidArgument) naming address and
// reason when it cannot.
Socket listen_at(const std::string& host, int port);
int port_of(const Socket& listener);
// Tries until it is accepted; Error(kUnavailable) naming address and last reason after timeout_s.
Socket connect_to(const std::string& host, int port, double timeout_s);

// False when the peer is gone.
bool send_frame(const Socket& socket, Kind kind, const std::string& payload);
std::optional<Frame> receive_frame(const Socket& socket);
// Takes one whole frame off the front of what was read; throws Error(kUnavailable) on a frame that
// cannot be.
std::optional<Frame> take_frame(std::string& received);

std::string pack(const std::vector<std::string>& list);
std::vector<std::string> unpack(const std::string& bytes);

// What a rank answers to a challenge to show that it knows the job's secret.
std::string proof_of(const std::string& challenge, const std::string& secret, int rank);

}  // namespace tessera::control
