// SPDX-License-Identifier: MIT
#include "lib/comm/control/pending_connections.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <new>

namespace tessera::control {
namespace {

constexpr size_t kMostCallers = 256;
constexpr auto kShortestStay = std::chrono::milliseconds(50);
constexpr auto kLongestStay = std::chrono::seconds(5);
constexpr int kTurn = 64;  // connections accepted in one round, before pending ones are served
// Pause after running out of file descriptors.
constexpr auto kNoDescriptors = std::chrono::milliseconds(100);

}  // namespace

void tell(const Socket& socket, Kind kind, const std::string& payload) {
  const std::string bytes = frame_bytes(kind, payload);
  static_cast<void>(::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

bool PendingConnections::has_place() const {
  const auto now = Clock::now();
  if (now < exhausted_until_) return false;
  return callers_.size() < kMostCallers || callers_.front().since + kShortestStay <= now;
}

void PendingConnections::add_to(std::vector<pollfd>& waits, const Socket& listener) const {
  for (const Caller& caller : callers_) waits.push_back({caller.socket.fd(), POLLIN, 0});
  waits.push_back({listener.fd(), static_cast<short>(has_place() ? POLLIN : 0), 0});
}

int PendingConnections::patience() const { return has_place() ? 100 : 5; }

void PendingConnections::serve(const pollfd* first, const Socket& listener, const Judge& judge) {
  const auto now = Clock::now();
  const size_t count = callers_.size();
  for (size_t i = 0; i < count; ++i) {
    Caller& caller = callers_[i];
    if (first[i].revents != 0) hear(caller, judge);
    if (now > caller.since + kLongestStay) caller.socket = Socket();
  }
  const bool more = (first[count].revents & POLLIN) != 0;
  std::erase_if(callers_, [](const Caller& caller) { return !caller.socket.open(); });
  if (more) accept_from(listener);
}

void PendingConnections::hear(Caller& caller, const Judge& judge) {
  char bytes[kMostUnproven];
  const ssize_t n = ::recv(caller.socket.fd(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    caller.socket = Socket();
    return;
  }
  caller.received.append(bytes, static_cast<size_t>(n));
  try {
    const auto frame = take_frame(caller.received, kMostUnproven);
    if (!frame) return;
    Caller spoken = std::move(caller);
    judge(std::move(spoken), *frame);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {  // a peer that speaks another protocol
    caller.socket = Socket();
  }
}

// Accepts one connection. Pauses accepting when the process has no file descriptors left.
Socket PendingConnections::accept_one(const Socket& listener) {
  Socket socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket.open()) return socket;
  if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
    exhausted_until_ = Clock::now() + kNoDescriptors;
    if (!callers_.empty()) callers_.pop_front();
  }
  return socket;
}

void PendingConnections::accept_from(const Socket& listener) {
  for (int i = 0; i < kTurn && has_place(); ++i) {
    Caller caller{accept_one(listener), "", "", Clock::now()};
    if (!caller.socket.open()) return;
    if (challenge_) {
      caller.challenge = random_text();
      tell(caller.socket, Kind::kChallenge, caller.challenge);
    }
    if (callers_.size() >= kMostCallers) callers_.pop_front();
    callers_.push_back(std::move(caller));
  }
}

int PendingConnections::turn_away(const Socket& listener, Kind kind, const std::string& reason) {
  int told = static_cast<int>(callers_.size());
  for (const Caller& caller : callers_) tell(caller.socket, kind, reason);
  callers_.clear();
  for (int i = 0; i < kTurn; ++i, ++told) {
    const Socket socket = accept_one(listener);
    if (!socket.open()) break;
    tell(socket, kind, reason);
  }
  return told;
}

}  // namespace tessera::control
