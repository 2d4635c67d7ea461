#include "lib/comm/bootstrap/control_client.h"

#include <poll.h>

#include <algorithm>

#include "tessera/core/error.h"
#include "tessera/core/host_name.h"

namespace tessera::control {
namespace {

constexpr double kConnectTimeout = 5;  // of one attempt
// A hub speaks first, and at once.
constexpr double kChallengeTimeout = 5, kChallengeTimeoutOfMany = 1;

std::string place_text(const Rendezvous& place) { return concat(place.host, ":", place.port); }

}  // namespace

ControlClient::ControlClient(const Whereabouts& rank_0, const Identity& identity, double timeout_s,
                             std::shared_ptr<AbortSignal> signal)
    : signal_(std::move(signal)) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s);
  std::string where = rank_0.unknown, why = "rank 0 has not said where it listens";
  while (!thread_.joinable()) {
    for (const Rendezvous& place : rank_0.places()) {
      where = place_text(place);
      socket_ = try_connect(place.host, place.port, std::min(timeout_s, kConnectTimeout), why);
      if (!socket_.open()) continue;
      limit_receives(socket_, rank_0.certain ? kChallengeTimeout : kChallengeTimeoutOfMany);
      why = introduce(place, identity);
      if (why.empty()) {
        thread_ = std::thread([this] { listen(); });
        break;
      }
      check(!rank_0.certain, ErrorCode::kInvalidArgument, "control channel: ", where, ": ", why);
    }
    check(thread_.joinable() || Clock::now() < deadline, ErrorCode::kUnavailable,
          "control channel: rank ", identity.rank, " did not find rank 0 at ", where, " within ",
          timeout_s, " s (", why, "); is rank 0 running there?");
    if (!thread_.joinable()) ::poll(nullptr, 0, 20);  // rank 0 may not listen yet
  }
}

std::string ControlClient::introduce(const Rendezvous& place, const Identity& identity) {
  constexpr const char* kForeign = "what answers there is not tessera; choose another MASTER_PORT";
  const auto challenge = receive_frame(socket_);
  if (!challenge) return kForeign;
  if (challenge->kind == Kind::kElsewhere) return challenge->payload;
  if (challenge->kind != Kind::kChallenge) return kForeign;
  notice_lost_host(socket_);
  limit_receives(socket_, 0);
  const std::string random = random_text();
  const std::string who = concat("rank ", identity.rank);
  const Hello hello{identity.job,  proof_of(challenge->payload, place.secret, who),
                    identity.rank, identity.world_size,
                    host_name(),   random};
  send_frame(socket_, Kind::kHello, hello.pack());
  const auto answer = receive_frame(socket_);
  check(answer.has_value(), ErrorCode::kUnavailable, "control channel: rank ", identity.rank,
        ": rank 0 closed the connection before all ranks had arrived");
  if (answer->kind == Kind::kElsewhere) return answer->payload;
  check(answer->kind != Kind::kRefuse, ErrorCode::kInvalidArgument,
        "the ranks could not be connected: ", answer->payload);
  const bool known =
      answer->kind == Kind::kWelcome && answer->payload == proof_of(random, place.secret, "hub");
  return known ? "" : "what answers there does not know the job's secret; choose another port";
}

ControlClient::~ControlClient() {
  {
    std::lock_guard lock(send_mutex_);
    send_frame(socket_, Kind::kBye, "");
  }
  {
    std::lock_guard lock(mutex_);
    closed_ = true;  // the end of the connection is no failure now
  }
  socket_.shut_down();
  thread_.join();
}

void ControlClient::listen() {
  while (const auto frame = receive_frame(socket_)) {
    if (frame->kind == Kind::kAbort) signal_->raise(frame->payload);
    std::lock_guard lock(mutex_);
    if (frame->kind == Kind::kExchange) exchanged_ = frame->payload;
    if (frame->kind == Kind::kConclude) concluded_ = frame->payload;
    if (frame->kind == Kind::kTake) {
      const std::vector<std::string> item = unpack(frame->payload);
      taken_[item.at(0)] = item.at(1);
    }
    changed_.notify_all();
  }
  std::lock_guard lock(mutex_);
  if (!closed_) signal_->raise("rank 0, which holds the job together, has died");
  closed_ = true;
  changed_.notify_all();
}

void ControlClient::send(Kind kind, const std::string& payload) {
  std::lock_guard lock(send_mutex_);
  if (!send_frame(socket_, kind, payload)) {
    signal_->raise("rank 0, which holds the job together, has died");
  }
}

template <typename Slot>
std::string ControlClient::await(Slot arrived, bool even_when_aborted) {
  std::unique_lock lock(mutex_);
  std::optional<std::string> bytes;
  changed_.wait(lock, [&] {
    bytes = arrived();
    return bytes || closed_ || (signal_->raised() && !even_when_aborted);
  });
  if (bytes) return *bytes;
  signal_->throw_if_raised();
  fail(ErrorCode::kUnavailable, "control channel: the connection to rank 0 is closed");
}

std::vector<std::string> ControlClient::exchange(const std::string& bytes) {
  signal_->throw_if_raised();
  send(Kind::kExchange, bytes);
  return unpack(await([&] { return std::exchange(exchanged_, std::nullopt); }, false));
}

std::vector<std::string> ControlClient::conclude(const std::string& status) {
  send(Kind::kConclude, status);
  return unpack(await([&] { return std::exchange(concluded_, std::nullopt); }, true));
}

void ControlClient::abort(const std::string& reason) {
  signal_->raise(reason);
  send(Kind::kAbort, reason);
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void ControlClient::post(const std::string& key, const std::string& value) {
  send(Kind::kPost, pack({key, value}));
}

std::string ControlClient::take(const std::string& key) {
  send(Kind::kTake, key);
  return await(
      [&]() -> std::optional<std::string> {
        const auto item = taken_.find(key);
        if (item == taken_.end()) return std::nullopt;
        std::string value = std::move(item->second);
        taken_.erase(item);
        return value;
      },
      false);
}

}  // namespace tessera::control
