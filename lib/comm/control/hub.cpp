// SPDX-License-Identifier: MIT
#include "lib/comm/control/hub.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "tessera/comm/control_channel.h"
#include "tessera/core/error.h"

namespace tessera::control {
namespace {

// limit for the other ranks' status after a failure
constexpr auto kGrace = std::chrono::seconds(10);
// Late ranks get this long to learn that the job was refused.
constexpr auto kRefusalGrace = std::chrono::seconds(2);

}  // namespace

Hub::Hub(Socket listener, int world_size, std::string job, std::string secret, double timeout_s,
         double heartbeat_timeout_s, size_t most_bytes, LaunchGroup kin)
    : listener_(std::move(listener)),
      size_(world_size),
      job_(std::move(job)),
      secret_(std::move(secret)),
      timeout_s_(timeout_s),
      heartbeat_timeout_s_(heartbeat_timeout_s),
      most_bytes_(most_bytes),
      deadline_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                   std::chrono::duration<double>(timeout_s))),
      kin_(std::move(kin)),
      heart_(heartbeat_timeout_s),
      gone_(world_size, false),
      concluded_(world_size, false) {
  never_block(listener_);
  thread_ = std::thread([this] { serve(); });
}

Hub::~Hub() { thread_.join(); }

bool Hub::finished() const {
  const auto now = Clock::now();
  if (refused_at_) return told_ >= size_ || now > *refused_at_ + kRefusalGrace;
  if (!complete_) return false;
  if (concluded_at_ && now > *concluded_at_ + kGrace) return true;
  // Rank 0's process waits for this hub, so after a failure the remaining ranks have a time limit.
  if (aborted_ && gone_[0] && now > *conclude_by_) return true;
  return std::all_of(gone_.begin(), gone_.end(), [](bool gone) { return gone; });
}

void Hub::serve() {
  try {
    while (!finished()) poll_once();
  } catch (const std::exception& error) {  // such as out of memory
    try {
      abort_all(concat("rank 0 can no longer hold the job together: ", error.what()), -1);
    } catch (const std::exception&) {  // ranks also notice the closed connections
    }
  }
  peers_.clear();
}

void Hub::poll_once() {
  std::vector<pollfd> waits;
  for (const Peer& peer : peers_) {
    const bool writes = !peer.outgoing.empty();
    waits.push_back({peer.socket.fd(), static_cast<short>(POLLIN | (writes ? POLLOUT : 0)), 0});
  }
  const size_t count = peers_.size();
  room_.add_to(waits, listener_);
  auto rest = static_cast<int>(heart_.rest().count());
  if (inquiry_ && !aborted_) rest = std::min(rest, static_cast<int>(inquiry_->patience().count()));
  ::poll(waits.data(), waits.size(), std::min(rest, room_.patience()));
  for (size_t i = 0; i < count; ++i) {
    if ((waits[i].revents & POLLOUT) != 0) write_to(peers_[i]);
    if ((waits[i].revents & ~POLLOUT) != 0) read_from(peers_[i]);
  }
  if (!complete_ && !refused_at_) {
    room_.serve(&waits[count], listener_,
                [this](Caller&& caller, const Frame& frame) { greet(std::move(caller), frame); });
    refuse_if_due();
  }
  answer_put_off();
  if (refused_at_) {
    told_ += room_.turn_away(listener_, Kind::kRefuse, refusal_);
  } else if (complete_) {
    room_.turn_away(
        listener_, Kind::kElsewhere,
        concat("a job of ", size_, " ranks is running there already; choose another MASTER_PORT"));
  }
  look_after_silent();
  std::erase_if(peers_, [](const Peer& peer) { return !peer.socket.open(); });
  end_inquiry_if_due();
  wake_those_who_wait_in_vain();
  conclude_if_due();
}

void Hub::read_from(Peer& peer) {
  if (!peer.socket.open()) return;
  char bytes[65536];
  const ssize_t n = ::recv(peer.socket.fd(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) return lose(peer);
  peer.silence.end();
  peer.received.append(bytes, static_cast<size_t>(n));
  try {
    while (const auto frame = take_frame(peer.received, most_bytes_)) handle(peer, *frame);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {  // a peer that speaks another protocol
    lose(peer);
  }
}

void Hub::write_to(Peer& peer) {
  while (peer.socket.open() && !peer.outgoing.empty()) {
    const std::string& bytes = *peer.outgoing.front();
    const ssize_t n = ::send(peer.socket.fd(), bytes.data() + peer.sent, bytes.size() - peer.sent,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;  // buffer full, or connection closed, which the next read notices
    peer.sent += static_cast<size_t>(n);
    if (peer.sent < bytes.size()) continue;
    peer.outgoing.pop_front();
    peer.sent = 0;
  }
}

void Hub::send(Peer& peer, const std::shared_ptr<const std::string>& bytes) {
  peer.outgoing.push_back(bytes);
  if (peer.outgoing.size() == 1) write_to(peer);
}

void Hub::send_to_all(Kind kind, const std::string& payload, int except) {
  const auto bytes = std::make_shared<const std::string>(frame_bytes(kind, payload));
  for (Peer& peer : peers_) {
    if (peer.rank >= 0 && peer.rank != except && peer.socket.open()) send(peer, bytes);
  }
}

void Hub::send_to(int rank, Kind kind, const std::string& payload) {
  for (Peer& peer : peers_) {
    if (peer.rank != rank || !peer.socket.open()) continue;
    send(peer, std::make_shared<const std::string>(frame_bytes(kind, payload)));
  }
}

void Hub::look_after_silent() {
  const Clock::duration awake = heart_.look();
  const bool beat = heart_.beat_is_due();
  const auto pulse = std::make_shared<const std::string>(frame_bytes(Kind::kPulse, ""));
  for (Peer& peer : peers_) {
    if (peer.rank < 0 || !peer.socket.open()) continue;
    if (beat && peer.outgoing.empty()) send(peer, pulse);
    peer.silence.pass(awake);
    if (gone_[peer.rank] || !peer.silence.exceeds(heartbeat_timeout_s_)) continue;
    if (!complete_) {
      lose(peer);
      continue;
    }
    gone_[peer.rank] = true;  // the connection stays, so that the rank reads the reason later
    inquire(peer.silence.reason(peer.rank, peer.host, heartbeat_timeout_s_));
  }
}

void Hub::lose(Peer& peer) {
  peer.socket = Socket();
  if (peer.rank < 0) return;
  if (!complete_) {
    peer.rank = -1;  // the rank may connect again until the deadline
    return;
  }
  if (gone_[peer.rank]) return;
  gone_[peer.rank] = true;
  if (!peer.said_bye) inquire(concat("rank ", peer.rank, " (host ", peer.host, ") has died"));
}

void Hub::handle(Peer& peer, const Frame& frame) {
  if (refused_at_) return;
  switch (frame.kind) {
    case Kind::kExchange:
      exchanging_[peer.rank] = frame.payload;
      if (static_cast<int>(exchanging_.size()) == size_) {
        std::vector<std::string> all;
        for (auto& [rank, bytes] : exchanging_) all.push_back(std::move(bytes));
        exchanging_.clear();
        send_to_all(Kind::kExchange, pack(all));
      }
      return;
    case Kind::kConclude:
      concluding_[peer.rank] = frame.payload;
      concluded_[peer.rank] = true;
      if (!frame.payload.empty()) abort_all(concat("rank ", peer.rank, " failed"), peer.rank);
      return;
    case Kind::kPost:
      return post(frame);
    case Kind::kTake: {
      const auto item = posted_.find(frame.payload);
      if (item != posted_.end()) {
        send_to(peer.rank, Kind::kTake, item->second);
        posted_.erase(item);
      } else {
        takers_[frame.payload] = peer.rank;
      }
      return;
    }
    case Kind::kAbort:
      return abort_all(frame.payload, peer.rank);
    case Kind::kReport:
      return inquire(Report::unpack(frame.payload));
    case Kind::kTell:
      if (inquiry_) inquiry_->hear(peer.rank, frame.payload);
      return;
    case Kind::kBye:
      peer.said_bye = true;
      return;
    case Kind::kPulse:
      return;
    default:
      fail(ErrorCode::kUnavailable, "control channel: an unexpected frame");
  }
}

void Hub::post(const Frame& frame) {
  const std::string key = unpack(frame.payload).at(0);
  const auto taker = takers_.find(key);
  if (taker == takers_.end()) {
    posted_[key] = frame.payload;
    return;
  }
  send_to(taker->second, Kind::kTake, frame.payload);
  takers_.erase(taker);
}

void Hub::abort_all(const std::string& reason, int except) {
  end_all(Kind::kAbort, reason, except);
}

void Hub::end_all(Kind kind, const std::string& payload, int except) {
  if (!conclude_by_) conclude_by_ = Clock::now() + kGrace;
  if (aborted_) return;
  aborted_ = true;
  send_to_all(kind, payload, except);
}

// Fails exchanges that an ended rank will never join.
void Hub::wake_those_who_wait_in_vain() {
  if (aborted_ || inquiry_ || !complete_) return;
  std::vector<int> ended, waiting;
  for (int r = 0; r < size_; ++r) {
    const bool left = gone_[r] || concluded_[r];
    const bool takes = std::any_of(takers_.begin(), takers_.end(),
                                   [r](const auto& taker) { return taker.second == r; });
    if (left) ended.push_back(r);
    if (!left && (exchanging_.contains(r) || takes)) waiting.push_back(r);
  }
  const bool others_talk = static_cast<int>(ended.size() + waiting.size()) < size_;
  if (ended.empty() || waiting.empty() || (exchanging_.empty() && others_talk)) return;
  abort_all(concat("rank ", rank_list(ended), " ended while rank ", rank_list(waiting),
                   " waited for an answer; every rank must make the same calls"),
            -1);
}

void Hub::conclude_if_due() {
  if (concluding_.empty()) return;
  std::vector<std::string> statuses;
  bool all = true;
  for (int r = 0; r < size_; ++r) {
    const auto status = concluding_.find(r);
    all = all && (status != concluding_.end() || gone_[r]);
    statuses.push_back(status != concluding_.end() ? status->second : "?");
  }
  if (!all && (!conclude_by_ || Clock::now() < *conclude_by_)) return;
  for (int r = 0; r < size_; ++r) {
    if (concluding_.contains(r)) send_to(r, Kind::kConclude, pack(statuses));
  }
  concluding_.clear();
  concluded_at_ = Clock::now();
}

}  // namespace tessera::control
