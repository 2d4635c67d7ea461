// SPDX-License-Identifier: MIT
#include "lib/comm/control/control_client.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "lib/core/host_name.h"
#include "tessera/core/error.h"

namespace tessera::control {
namespace {

constexpr double kConnectTimeout = 5;  // seconds, per attempt
// Seconds; a hub sends its challenge at once after accepting.
constexpr double kAnswerTimeout = 5, kAnswerTimeoutOfMany = 1;
constexpr auto kAnswerLater = std::chrono::milliseconds(10);
constexpr auto kInquiryTimeout = std::chrono::seconds(5);

constexpr size_t kItemHeader = 4;  // bytes before each item of a list

// Size in bytes of a text whose size is written after its first space.
size_t size_of(const std::string& text) {
  const size_t header = text.find(' ') + 1;
  return header + std::stoull(text.substr(0, header));
}

}  // namespace

ControlClient::ControlClient(const Endpoints& rank_0, const Identity& identity, double timeout_s,
                             std::shared_ptr<AbortSignal> signal, size_t most_bytes)
    : ranks_(static_cast<size_t>(identity.world_size)),
      most_bytes_(most_bytes),
      signal_(std::move(signal)) {
  find_hub(rank_0, identity, timeout_s);
  thread_ = std::thread([this] { listen(); });
  try {
    await([this] { return welcome_ ? std::optional<std::string>("") : std::nullopt; }, true);
  } catch (...) {
    close();
    check(refusal_.empty(), ErrorCode::kInvalidArgument,
          "the ranks could not be connected: ", refusal_);
    throw;
  }
}

ControlClient::~ControlClient() { close(); }

void ControlClient::find_hub(const Endpoints& rank_0, const Identity& identity, double timeout_s) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s);
  std::string where = rank_0.unknown, why = "rank 0 has not said where it listens";
  while (true) {
    for (const Rendezvous& place : rank_0.places()) {
      where = place_text(place.host, place.port);
      socket_ = try_connect(place.host, place.port, std::min(timeout_s, kConnectTimeout), why);
      if (!socket_.open()) continue;
      const Answer answer = introduce(place, identity, rank_0.certain, why);
      if (answer == Answer::kAdmitted) return;
      check(answer == Answer::kAgain || !rank_0.certain, ErrorCode::kInvalidArgument,
            "control channel: ", where, ": ", why);
    }
    check(Clock::now() < deadline, ErrorCode::kUnavailable, "control channel: rank ", identity.rank,
          " did not find rank 0 at ", where, " within ", timeout_s, " s (", why,
          "); is rank 0 running there?");
    ::poll(nullptr, 0, 20);  // rank 0 may not listen yet
  }
}

ControlClient::Answer ControlClient::introduce(const Rendezvous& place, const Identity& identity,
                                               bool certain, std::string& why) {
  const double timeout_s = certain ? kAnswerTimeout : kAnswerTimeoutOfMany;
  const auto unheard = [&why](Reception how) {
    why = how == Reception::kClosed   ? "it closed the connection at once"
          : how == Reception::kSilent ? "what answers there says nothing: it is not tessera, or "
                                        "rank 0 is stopped; choose another MASTER_PORT"
                                      : "what answers there is not tessera; choose another "
                                        "MASTER_PORT";
    return how == Reception::kClosed ? Answer::kAgain : Answer::kNotOurs;
  };
  const Received challenge = receive_frame(socket_, timeout_s);
  if (challenge.how != Reception::kFrame) return unheard(challenge.how);
  const std::string& said = challenge.frame.payload;
  if (challenge.frame.kind == Kind::kElsewhere) return why = said, Answer::kNotOurs;
  check(challenge.frame.kind != Kind::kRefuse, ErrorCode::kInvalidArgument,
        "the ranks could not be connected: ", said);
  if (challenge.frame.kind != Kind::kChallenge) return unheard(Reception::kForeign);
  const std::string random = random_text();
  const std::string who = concat("rank ", identity.rank);
  const Hello hello{identity.job,  proof_of(said, place.secret, who),
                    identity.rank, identity.world_size,
                    host_name(),   random,
                    identity.kin};
  if (!send_frame(socket_, Kind::kHello, hello.pack())) return unheard(Reception::kClosed);
  const Received answer = receive_frame(socket_, timeout_s);
  if (answer.how != Reception::kFrame) return unheard(answer.how);
  if (answer.frame.kind == Kind::kElsewhere) return why = answer.frame.payload, Answer::kNotOurs;
  check(answer.frame.kind != Kind::kRefuse, ErrorCode::kInvalidArgument,
        "the ranks could not be connected: ", answer.frame.payload);
  why = "what answers there does not know the job's secret; choose another port";
  if (answer.frame.kind != Kind::kAdmit) return Answer::kNotOurs;
  const Admission admission = Admission::unpack(answer.frame.payload);
  if (admission.proof != proof_of(random, place.secret, "hub")) return Answer::kNotOurs;
  hub_host_ = admission.host;
  heartbeat_timeout_s_ = admission.heartbeat_timeout_s;
  notice_lost_host(socket_);
  return Answer::kAdmitted;
}

void ControlClient::close() {
  {
    std::lock_guard lock(send_mutex_);
    send_frame(socket_, Kind::kBye, "");
  }
  {
    std::lock_guard lock(mutex_);
    closed_ = true;  // a connection that ends from here on is no failure
  }
  socket_.shut_down();
  thread_.join();
}

void ControlClient::listen() {
  try {
    Heart heart(heartbeat_timeout_s_);
    while (true) {
      pollfd wait{socket_.fd(), POLLIN, 0};
      ::poll(&wait, 1, static_cast<int>((asked_ ? kAnswerLater : heart.rest()).count()));
      const bool more = wait.revents == 0 || hear();
      silence_.pass(heart.look());
      if (!more) {
        return end(concat("rank 0 (host ", hub_host_, "), which holds the job together, has died"));
      }
      if (heart.beat_is_due()) beat();
      if (asked_) answer();
      if (!silence_.exceeds(heartbeat_timeout_s_)) continue;
      return end(silence_.reason(0, hub_host_, heartbeat_timeout_s_));
    }
  } catch (const std::exception& error) {  // out of memory, or a peer that speaks another protocol
    end(concat("control channel: ", error.what()));
  }
}

bool ControlClient::hear() {
  char bytes[65536];
  const ssize_t n = ::recv(socket_.fd(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (n <= 0) return false;
  silence_.end();
  received_.append(bytes, static_cast<size_t>(n));
  while (auto frame = take_frame(received_, most_bytes_)) handle(std::move(*frame));
  return true;
}

void ControlClient::handle(Frame&& frame) {
  if (frame.kind == Kind::kAbort) signal_->raise(frame.payload);
  if (frame.kind == Kind::kAsk) asked_ = frame.payload;
  if (frame.kind == Kind::kFailure) {
    const std::vector<std::string> parts = unpack(frame.payload);
    fail(parts.at(1), static_cast<ErrorCode>(std::stoi(parts.at(0))));
  }
  std::lock_guard lock(mutex_);
  if (frame.kind == Kind::kWelcome) welcome_ = true;
  if (frame.kind == Kind::kRefuse) {
    refusal_ = std::move(frame.payload);
    closed_ = true;
  }
  if (frame.kind == Kind::kExchange) exchanged_ = std::move(frame.payload);
  if (frame.kind == Kind::kConclude) concluded_ = std::move(frame.payload);
  if (frame.kind == Kind::kTake) {
    std::vector<std::string> item = unpack(frame.payload);
    taken_[item.at(0)] = std::move(item.at(1));
  }
  changed_.notify_all();
}

// Sends a pulse unless another thread is sending, or the connection's buffer is full.
void ControlClient::beat() {
  changed_.notify_all();  // wakes waiters: the signal may be raised
  try_send(Kind::kPulse, "");
}

bool ControlClient::try_send(Kind kind, const std::string& payload) {
  const std::unique_lock lock(send_mutex_, std::try_to_lock);
  pollfd room{socket_.fd(), POLLOUT, 0};
  if (!lock || ::poll(&room, 1, 0) <= 0) return false;
  send_frame(socket_, kind, payload);
  return true;
}

void ControlClient::answer() {
  std::function<RankStatus(const Call*)> tell;
  {
    std::lock_guard lock(mutex_);
    tell = witness_.tell;
  }
  std::string status;
  if (tell) {
    const Call call = asked_->empty() ? Call() : Call::unpack(*asked_);
    status = tell(asked_->empty() ? nullptr : &call).pack();
  }
  if (try_send(Kind::kTell, status)) asked_.reset();
}

void ControlClient::fail(const std::string& reason, ErrorCode code) {
  signal_->raise(reason, code);
  std::function<void()> on_failure;
  {
    std::lock_guard lock(mutex_);
    on_failure = witness_.on_failure;
  }
  if (on_failure) on_failure();
}

void ControlClient::set_witness(Witness witness) {
  std::lock_guard lock(mutex_);
  witness_ = std::move(witness);
}

void ControlClient::report(const Report& report) {
  if (signal_->raised()) return;
  send(Kind::kReport, report.pack());
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kInquiryTimeout, [&] { return closed_ || signal_->raised(); });
}

// Shuts the socket down, which also ends a send to a hub that does not read.
void ControlClient::end(const std::string& reason) {
  std::unique_lock lock(mutex_);
  if (!closed_ && welcome_ && witness_.tell) {
    // No hub to ask: this rank reports its own status only.
    CallFailure failure{.cause = reason, .call = {}, .ranks = {}};
    const RankStatus status = witness_.tell(nullptr);
    failure.call = status.waiting;
    if (status.waiting.communicator.empty() && !status.recent.empty()) {
      failure.call = status.recent.front();
    }
    lock.unlock();
    fail(failure.explain().what(), ErrorCode::kUnavailable);
    lock.lock();
  } else if (!closed_) {
    signal_->raise(welcome_ ? reason : "control channel: before all ranks had arrived: " + reason);
  }
  closed_ = true;
  socket_.shut_down();
  changed_.notify_all();
}

void ControlClient::send(Kind kind, const std::string& payload) {
  check(payload.size() <= most_bytes_, ErrorCode::kInvalidArgument,
        "control channel: ", payload.size(), " bytes are too many to say at once; ", most_bytes_,
        " is the most");
  std::lock_guard lock(send_mutex_);
  if (send_frame(socket_, kind, payload)) return;
  socket_.shut_down();  // the listening thread reports the reason
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
  tessera::fail(ErrorCode::kUnavailable, "control channel: the connection to rank 0 is closed");
}

// Exchanges in rounds, since a frame is limited and the answer holds a piece of every rank. The
// first round also tells each rank's total size.
std::vector<std::string> ControlClient::exchange(const std::string& bytes) {
  signal_->throw_if_raised();
  const std::string mine = std::to_string(bytes.size()) + ' ' + bytes;
  const size_t piece = std::max<size_t>(most_bytes_ / ranks_, 64) - kItemHeader;
  std::vector<std::string> all(ranks_);
  size_t most = mine.size();
  for (size_t sent = 0; sent < most; sent += piece) {
    send(Kind::kExchange, sent < mine.size() ? mine.substr(sent, piece) : "");
    const std::vector<std::string> pieces =
        unpack(await([&] { return std::exchange(exchanged_, std::nullopt); }, false));
    for (size_t r = 0; r < ranks_; ++r) {
      all[r] += pieces.at(r);
      if (sent == 0) most = std::max(most, size_of(all[r]));
    }
  }
  for (std::string& text : all) text.erase(0, text.find(' ') + 1);
  return all;
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
