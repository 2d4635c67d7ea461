#include "lib/comm/bootstrap/hub.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>

#include "tessera/comm/control_channel.h"
#include "tessera/core/error.h"

namespace tessera::control {
namespace {

constexpr auto kGrace = std::chrono::seconds(10);  // for the others' status after a failure

// Ranks that cannot join have said so themselves by then.
constexpr auto kRefusalDelay = std::chrono::seconds(3);
// Ranks that are a little late hear of a refusal too.
constexpr auto kRefusalGrace = std::chrono::seconds(2);

}  // namespace

Hub::Hub(Socket listener, int world_size, std::string job, std::string secret, double timeout_s)
    : listener_(std::move(listener)),
      size_(world_size),
      job_(std::move(job)),
      secret_(std::move(secret)),
      timeout_s_(timeout_s),
      deadline_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                   std::chrono::duration<double>(timeout_s))),
      gone_(world_size, false),
      thread_([this] { serve(); }) {}

Hub::~Hub() { thread_.join(); }

bool Hub::finished() const {
  if (refused_at_) return told_ >= size_ || Clock::now() > *refused_at_ + kRefusalGrace;
  if (!complete_) return false;
  if (concluded_at_ && Clock::now() > *concluded_at_ + kGrace) return true;
  return std::all_of(gone_.begin(), gone_.end(), [](bool gone) { return gone; });
}

void Hub::serve() {
  while (!finished()) {
    std::vector<pollfd> waits;
    for (const Peer& peer : peers_) waits.push_back({peer.socket.fd(), POLLIN, 0});
    waits.push_back({listener_.fd(), POLLIN, 0});
    ::poll(waits.data(), waits.size(), 100);
    const size_t count = peers_.size();
    for (size_t i = 0; i < count; ++i) {
      if (waits[i].revents != 0) read_from(peers_[i]);
    }
    if (waits.back().revents != 0) accept_peer();
    reap();
    if (!complete_ && !refused_at_ && refuse_by_ && Clock::now() > *refuse_by_)
      refuse_all(refusal_);
    if (!complete_ && !refused_at_ && Clock::now() > deadline_) {
      refuse_all(concat("rank ", rank_list(missing()), " of ", size_, " did not connect within ",
                        timeout_s_, " s; look for their own errors, or raise ",
                        "TESSERA_RENDEZVOUS_TIMEOUT_S"));
    }
    conclude_if_due();
  }
}

std::vector<int> Hub::missing() const {
  std::vector<int> ranks;
  for (int r = 0; r < size_; ++r) {
    const bool here =
        std::any_of(peers_.begin(), peers_.end(), [r](const Peer& peer) { return peer.rank == r; });
    if (!here) ranks.push_back(r);
  }
  return ranks;
}

void Hub::accept_peer() {
  Peer peer;
  peer.socket = Socket(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!peer.socket.open()) return;
  if (complete_) {
    send_frame(peer.socket, Kind::kElsewhere,
               concat("a job of ", size_, " ranks is running there already; choose another ",
                      "MASTER_PORT"));
    return;
  }
  if (refused_at_) return tell_refusal(peer);
  notice_lost_host(peer.socket);
  peer.challenge = random_text();
  send_frame(peer.socket, Kind::kChallenge, peer.challenge);
  peers_.push_back(std::move(peer));
}

void Hub::read_from(Peer& peer) {
  char bytes[65536];
  const ssize_t n = ::recv(peer.socket.fd(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) return lose(peer);
  peer.received.append(bytes, static_cast<size_t>(n));
  try {
    while (const auto frame = take_frame(peer.received)) handle(peer, *frame);
  } catch (const std::exception&) {  // not our protocol
    lose(peer);
  }
}

void Hub::lose(Peer& peer) {
  peer.socket = Socket();
  if (peer.rank < 0 || gone_[peer.rank]) return;
  if (!complete_) {
    peer.rank = -1;  // it may try again until the deadline
    return;
  }
  gone_[peer.rank] = true;
  if (!peer.said_bye) abort_all(concat("rank ", peer.rank, " (host ", peer.host, ") has died"), -1);
}

void Hub::reap() {
  std::erase_if(peers_, [](const Peer& peer) { return !peer.socket.open(); });
}

void Hub::greet(Peer& peer, const Frame& frame) {
  check(frame.kind == Kind::kHello, ErrorCode::kUnavailable, "not a hello");
  const Hello hello = Hello::unpack(frame.payload);
  const std::string who = concat("rank ", hello.rank);
  if (hello.job != job_) {
    send_frame(peer.socket, Kind::kElsewhere,
               concat("another job gathers there ('", job_, "', not '", hello.job,
                      "'); choose another MASTER_PORT"));
    peer.socket = Socket();
    return;
  }
  if (hello.proof != proof_of(peer.challenge, secret_, who)) {
    refusal_ = concat("the job secret of ", who, " on host ", hello.host,
                      " differs from rank 0's; give all ranks the same TESSERA_JOB_SECRET or "
                      "TESSERA_JOB_SECRET_FILE");
    tell_refusal(peer);
    peer.socket = Socket();
    if (!refuse_by_) refuse_by_ = Clock::now() + kRefusalDelay;
    return;
  }
  if (hello.world_size != size_ || hello.rank < 0 || hello.rank >= size_) {
    return refuse_all(concat(who, " on host ", hello.host, " was started with world size ",
                             hello.world_size, ", rank 0 with ", size_));
  }
  for (const Peer& other : peers_) {
    if (other.rank != hello.rank || !other.socket.open()) continue;
    return refuse_all(concat("two processes say they are ", who, ", on hosts ", other.host, " and ",
                             hello.host,
                             "; give every process its own RANK, and every job its own "
                             "MASTER_PORT"));
  }
  peer.rank = hello.rank;
  peer.host = hello.host;
  peer.random = hello.random;
  if (!missing().empty()) return;
  complete_ = true;
  for (const Peer& each : peers_) {
    if (each.rank < 0) continue;
    send_frame(each.socket, Kind::kWelcome, proof_of(each.random, secret_, "hub"));
  }
}

void Hub::handle(Peer& peer, const Frame& frame) {
  if (refused_at_) return;
  if (peer.rank < 0) return greet(peer, frame);
  switch (frame.kind) {
    case Kind::kExchange:
      exchanging_[peer.rank] = frame.payload;
      if (static_cast<int>(exchanging_.size()) == size_) {
        std::vector<std::string> all;
        for (auto& [rank, bytes] : exchanging_) all.push_back(std::move(bytes));
        exchanging_.clear();
        for (int r = 0; r < size_; ++r) send_to(r, Kind::kExchange, pack(all));
      }
      return;
    case Kind::kConclude:
      concluding_[peer.rank] = frame.payload;
      if (!frame.payload.empty()) abort_all(concat("rank ", peer.rank, " failed"), peer.rank);
      return;
    case Kind::kPost: {
      const std::vector<std::string> item = unpack(frame.payload);
      const auto taker = takers_.find(item.at(0));
      if (taker != takers_.end()) {
        send_to(taker->second, Kind::kTake, frame.payload);
        takers_.erase(taker);
      } else {
        posted_[item.at(0)] = frame.payload;
      }
      return;
    }
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
    case Kind::kBye:
      peer.said_bye = true;
      return;
    default:
      fail(ErrorCode::kUnavailable, "control channel: an unexpected frame");
  }
}

void Hub::abort_all(const std::string& reason, int except) {
  if (!conclude_by_) conclude_by_ = Clock::now() + kGrace;
  if (aborted_) return;
  aborted_ = true;
  for (int r = 0; r < size_; ++r) {
    if (r != except) send_to(r, Kind::kAbort, reason);
  }
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

void Hub::refuse_all(const std::string& reason) {
  refusal_ = reason;
  refused_at_ = Clock::now();
  for (const Peer& peer : peers_) {
    if (peer.socket.open()) tell_refusal(peer);
  }
}

void Hub::tell_refusal(const Peer& peer) {
  send_frame(peer.socket, Kind::kRefuse, refusal_);
  ++told_;
}

void Hub::send_to(int rank, Kind kind, const std::string& payload) {
  for (const Peer& peer : peers_) {
    if (peer.rank == rank && peer.socket.open()) send_frame(peer.socket, kind, payload);
  }
}

}  // namespace tessera::control
