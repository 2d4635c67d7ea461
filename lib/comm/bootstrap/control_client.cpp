#include "lib/comm/bootstrap/control_client.h"

#include <unistd.h>

#include "tessera/core/error.h"

namespace tessera::control {
namespace {

std::string host_name() {
  char name[256] = "?";
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

ControlClient::ControlClient(const std::string& host, int port, const Identity& identity,
                             double timeout_s, std::shared_ptr<AbortSignal> signal)
    : socket_(connect_to(host, port, timeout_s)), signal_(std::move(signal)) {
  introduce(identity);
  thread_ = std::thread([this] { listen(); });
}

void ControlClient::introduce(const Identity& identity) {
  const auto expect = [&](Kind kind) {
    const auto frame = receive_frame(socket_);
    check(frame.has_value(), ErrorCode::kUnavailable, "control channel: rank ", identity.rank,
          ": rank 0 closed the connection before all ranks had arrived");
    check(frame->kind != Kind::kRefuse, ErrorCode::kInvalidArgument,
          "the ranks could not be connected: ", frame->payload);
    check(frame->kind == kind, ErrorCode::kUnavailable,
          "control channel: what answers at rank 0's port is not tessera; choose another "
          "MASTER_PORT");
    return frame->payload;
  };
  const std::string challenge = expect(Kind::kChallenge);
  send(Kind::kHello,
       pack({"tessera 1", proof_of(challenge, identity.secret, identity.rank),
             std::to_string(identity.rank), std::to_string(identity.world_size), host_name()}));
  expect(Kind::kWelcome);
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
