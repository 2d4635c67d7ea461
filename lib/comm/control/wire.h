// SPDX-License-Identifier: MIT
#pragma once
// The frames of the control channel.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/comm/control/kin.h"
#include "lib/comm/control/socket.h"

namespace tessera::control {

// Frame: one byte kind, four bytes little-endian length, payload.
enum class Kind : uint8_t {
  kChallenge,  // hub: random bytes
  kHello,      // rank: Hello
  kAdmit,      // hub: Admission; it knows the rank
  kWelcome,    // hub: all ranks are here
  kRefuse,     // hub: reason why the job cannot start
  kElsewhere,  // hub: reason why the caller belongs to another job
  kExchange,   // rank: bytes; hub: list by rank
  kConclude,   // rank: status; hub: list by rank
  kPost,       // rank: list {key, value}
  kTake,       // rank: key; hub: list {key, value}
  kAbort,      // both: reason
  kBye,        // rank: about to close
  kPulse,      // both: the sender runs
  kReport,     // rank: Report of a call that does not end
  kAsk,        // hub: a Call, or nothing; what is the rank at?
  kTell,       // rank: its RankStatus
  kFailure,    // hub: list {exit code, sentence}; communication has failed
};
struct Frame {
  Kind kind;
  std::string payload;
};

constexpr size_t kMostUnproven = 4096;  // bytes of a frame from who has not proved who it is
constexpr size_t kMostProven = 256U << 20;

std::string frame_bytes(Kind kind, const std::string& payload);
// False when the peer is gone.
bool send_frame(const Socket& socket, Kind kind, const std::string& payload);
// Takes one whole frame off the front of what was read; throws Error(kUnavailable) on a frame that
// cannot be.
std::optional<Frame> take_frame(std::string& received, size_t most = kMostProven);

// One frame from a peer that is not proven yet, within `seconds` for all its bytes.
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
  Kin kin{};

  std::string pack() const;
  // Throws Error(kUnavailable) when it is none.
  static Hello unpack(const std::string& bytes);
};

// What the hub answers to a Hello that it knows.
struct Admission {
  std::string proof, host;
  double heartbeat_timeout_s = 0;  // rank 0's holds for all

  std::string pack() const;
  // Throws Error(kUnavailable) when it is none.
  static Admission unpack(const std::string& bytes);
};

// 128 random bits as text without spaces.
std::string random_text();
// What one side answers to the other's random bytes to show that it knows the job's secret: their
// HMAC-SHA-256 with who answers ("rank 3", or "hub").
std::string proof_of(const std::string& challenge, const std::string& secret,
                     const std::string& who);

}  // namespace tessera::control
