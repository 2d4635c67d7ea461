// SPDX-License-Identifier: MIT
#pragma once
// Frames of the control channel.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/comm/control/launch_group.h"
#include "lib/comm/control/socket.h"

namespace tessera::control {

// Frame: one byte kind, four bytes little-endian length, payload.
enum class Kind : uint8_t {
  kChallenge,  // hub: random bytes
  kHello,      // rank: Hello
  kAdmit,      // hub: Admission; it knows the rank
  kWelcome,    // hub: all ranks are connected
  kRefuse,     // hub: reason why the job cannot start
  kElsewhere,  // hub: why the caller belongs to another job
  kExchange,   // rank: bytes; hub: list by rank
  kConclude,   // rank: status; hub: list by rank
  kPost,       // rank: list {key, value}
  kTake,       // rank: key; hub: list {key, value}
  kAbort,      // both: reason
  kBye,        // rank: about to close
  kPulse,      // both: the sender is alive
  kReport,     // rank: Report of a call that does not end
  kAsk,        // hub: a Call or nothing; asks for the rank's status
  kTell,       // rank: its RankStatus
  kFailure,    // hub: list {exit code, sentence}; communication has failed
};
struct Frame {
  Kind kind;
  std::string payload;
};

// Frame limit in bytes for peers that have not proved the secret.
constexpr size_t kMostUnproven = 4096;
constexpr size_t kMostProven = 256U << 20;

std::string frame_bytes(Kind kind, const std::string& payload);
// False when the peer has closed the connection.
bool send_frame(const Socket& socket, Kind kind, const std::string& payload);
// Removes one complete frame from the front of `received`. Throws Error(kUnavailable) on an invalid
// frame.
std::optional<Frame> take_frame(std::string& received, size_t most = kMostProven);

// One frame from an unproven peer, within `seconds` for all its bytes.
enum class Reception { kFrame, kClosed, kSilent, kForeign };
struct Received {
  Reception how;
  Frame frame{};
};
Received receive_frame(const Socket& socket, double seconds, size_t most = kMostUnproven);

std::string pack(const std::vector<std::string>& list);
std::vector<std::string> unpack(const std::string& bytes);

struct Hello {
  std::string job, proof;
  int rank = 0;
  int world_size = 0;
  std::string host, random;
  LaunchGroup kin{};

  std::string pack() const;
  // Throws Error(kUnavailable) on malformed bytes.
  static Hello unpack(const std::string& bytes);
};

// The hub's answer to a valid Hello.
struct Admission {
  std::string proof, host;
  double heartbeat_timeout_s = 0;  // rank 0's value, used by all ranks

  std::string pack() const;
  // Throws Error(kUnavailable) on malformed bytes.
  static Admission unpack(const std::string& bytes);
};

// 128 random bits as text without spaces.
std::string random_text();
// Proof of knowing the job's secret: HMAC-SHA-256 of the other side's random bytes and the sender
// ("rank 3" or "hub").
std::string proof_of(const std::string& challenge, const std::string& secret,
                     const std::string& who);

}  // namespace tessera::control
