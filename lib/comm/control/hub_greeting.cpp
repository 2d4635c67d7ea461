// SPDX-License-Identifier: MIT
// Admission: how the hub tells ranks of its job from strangers.
#include <algorithm>
#include <cctype>

#include "lib/comm/control/hub.h"
#include "lib/core/host_name.h"
#include "tessera/comm/control_channel.h"
#include "tessera/core/error.h"

namespace tessera::control {
namespace {

// Precedence of ranks launched together with rank 0; below a caller's answer timeout.
constexpr auto kGiveWay = std::chrono::seconds(2);
constexpr const char* kAnotherJob =
    "another job gathers there, started elsewhere or by another command; choose another "
    "MASTER_PORT";

std::optional<Hello> read_hello(const Frame& frame) {
  try {
    return Hello::unpack(frame.payload);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Printable form of the name an unproven caller gave.
std::string printable(const std::string& name) {
  std::string text = name.substr(0, 64);
  for (char& byte : text) byte = std::isprint(static_cast<unsigned char>(byte)) ? byte : '?';
  return text;
}

}  // namespace

void Hub::greet(Caller&& caller, const Frame& frame) {
  if (frame.kind != Kind::kHello) return;
  if (complete_ || refused_at_) return;  // poll_once() sends the refusal
  const auto read = read_hello(frame);
  if (!read) {
    return tell(caller.socket, Kind::kElsewhere,
                "rank 0 does not understand the greeting; start all ranks with the same build");
  }
  const Hello& hello = *read;
  const std::string who = concat("rank ", hello.rank);
  if (hello.job != job_) {
    return tell(caller.socket, Kind::kElsewhere,
                concat("another job gathers there ('", job_, "', not '", printable(hello.job),
                       "'); choose another MASTER_PORT"));
  }
  if (hello.proof != proof_of(caller.challenge, secret_, who)) {
    ++turned_away_;
    last_turned_away_ = concat(who, " on host ", printable(hello.host));
    return tell(caller.socket, Kind::kRefuse,
                concat("the job secret of ", last_turned_away_,
                       " differs from rank 0's; give all ranks the same TESSERA_JOB_SECRET or "
                       "TESSERA_JOB_SECRET_FILE"));
  }
  if (hello.kin.other_launch(kin_)) return put_off(std::move(caller), hello);
  meet(std::move(caller), hello);
}

// Handles a process that has proved that it knows the secret.
void Hub::meet(Caller&& caller, const Hello& hello) {
  const std::string who = concat("rank ", hello.rank);
  if (hello.world_size != size_ || hello.rank < 0 || hello.rank >= size_) {
    refuse_all(concat(who, " on host ", hello.host, " was started with world size ",
                      hello.world_size, ", rank 0 with ", size_));
  }
  for (const Peer& other : peers_) {
    if (refused_at_ || other.rank != hello.rank) continue;
    refuse_all(concat("two processes say they are ", who, ", on hosts ", other.host, " and ",
                      hello.host,
                      "; give every process its own RANK, and every job its own MASTER_PORT"));
  }
  if (!refused_at_) return admit(std::move(caller), hello);
  tell(caller.socket, Kind::kRefuse, refusal_);
  ++told_;
}

bool Hub::is_taken(int rank) const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [rank](const Peer& peer) { return peer.rank == rank; });
}

// [Note: two jobs at one port]
// Two jobs started by hand without a secret may race for one port, and nothing surely tells them
// apart. Session, working directory and command line mostly do, but may differ within a job. A
// caller that differs from rank 0 in them waits for kGiveWay and yields to one that does not.
void Hub::put_off(Caller&& caller, const Hello& hello) {
  const bool waits = std::any_of(put_off_.begin(), put_off_.end(), [&](const PutOff& other) {
    return other.hello.rank == hello.rank;
  });
  if (waits || is_taken(hello.rank) || hello.world_size != size_) {
    return tell(caller.socket, Kind::kElsewhere, kAnotherJob);
  }
  put_off_.push_back({std::move(caller), hello, Clock::now() + kGiveWay});
}

void Hub::answer_put_off() {
  std::vector<PutOff> waiting = std::exchange(put_off_, {});
  for (PutOff& each : waiting) {
    if (refused_at_) {
      tell(each.caller.socket, Kind::kRefuse, refusal_);
      ++told_;
    } else if (complete_ || is_taken(each.hello.rank)) {
      tell(each.caller.socket, Kind::kElsewhere, kAnotherJob);
    } else if (Clock::now() < each.until) {
      put_off_.push_back(std::move(each));
    } else {
      meet(std::move(each.caller), each.hello);
    }
  }
}

void Hub::admit(Caller&& caller, const Hello& hello) {
  notice_lost_host(caller.socket);
  Peer& peer = peers_.emplace_back();
  peer.socket = std::move(caller.socket);
  peer.received = std::move(caller.received);
  peer.rank = hello.rank;
  peer.host = hello.host;
  const Admission admission{proof_of(hello.random, secret_, "hub"), host_name(),
                            heartbeat_timeout_s_};
  send_to(peer.rank, Kind::kAdmit, admission.pack());
  if (missing().empty()) welcome_all();
}

void Hub::welcome_all() {
  complete_ = true;
  send_to_all(Kind::kWelcome, "");
}

std::vector<int> Hub::missing() const {
  std::vector<int> ranks;
  for (int r = 0; r < size_; ++r) {
    if (!is_taken(r)) ranks.push_back(r);
  }
  return ranks;
}

void Hub::refuse_if_due() {
  if (complete_ || refused_at_ || Clock::now() <= deadline_) return;
  std::string secrets;
  if (turned_away_ > 0) {
    secrets = concat("; ", turned_away_, turned_away_ == 1 ? " caller" : " callers",
                     " with another job secret came meanwhile, the last as ", last_turned_away_,
                     ": give all ranks the same TESSERA_JOB_SECRET or TESSERA_JOB_SECRET_FILE");
  }
  refuse_all(concat("rank ", rank_list(missing()), " of ", size_, " did not connect within ",
                    timeout_s_, " s", secrets, "; look for their own errors, or raise ",
                    "TESSERA_RENDEZVOUS_TIMEOUT_S"));
}

void Hub::refuse_all(const std::string& reason) {
  refusal_ = reason;
  refused_at_ = Clock::now();
  send_to_all(Kind::kRefuse, reason);
  told_ += static_cast<int>(peers_.size());
}

}  // namespace tessera::control
