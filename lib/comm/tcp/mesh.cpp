// SPDX-License-Identifier: MIT
#include "lib/comm/tcp/mesh.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tessera/core/error.h"

namespace tessera::tcp {
namespace {

constexpr auto kLookAtSignal = std::chrono::milliseconds(20);
constexpr size_t kMostAtOnce = 1 << 20;  // bytes read from one peer before the next peer is served
constexpr size_t kMostUnasked = 256 << 20;

}  // namespace

Mesh::Mesh(std::vector<control::Socket> peers, std::shared_ptr<AbortSignal> signal)
    : peers_(peers.size()), signal_(std::move(signal)), wake_fd_(::eventfd(0, EFD_CLOEXEC)) {
  for (size_t r = 0; r < peers.size(); ++r) {
    peers_[r].socket = std::move(peers[r]);
    if (!peers_[r].socket.open()) continue;
    const int fd = peers_[r].socket.fd();
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  }
  thread_ = std::thread([this] { serve(); });
}

Mesh::~Mesh() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
  ::close(wake_fd_);
}

void Mesh::wake() {
  const uint64_t one = 1;
  while (::write(wake_fd_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void Mesh::serve() {
  try {
    while (true) {
      {
        std::lock_guard lock(mutex_);
        if (stopping_) return;
      }
      poll_once();
    }
  } catch (const std::exception& error) {  // such as out of memory
    signal_->raise(concat("tcp: the thread that moves tensors has failed: ", error.what()));
  }
}

void Mesh::poll_once() {
  std::vector<pollfd> waits{{wake_fd_, POLLIN, 0}};
  std::vector<int> ranks{-1};
  {
    std::lock_guard lock(mutex_);
    for (size_t r = 0; r < peers_.size(); ++r) {
      const Peer& peer = peers_[r];
      const bool writes = !peer.outgoing.empty();
      if (!peer.socket.open() || peer.lost || (peer.held && !writes)) continue;
      const int events = (peer.held ? 0 : POLLIN) | (writes ? POLLOUT : 0);
      waits.push_back({peer.socket.fd(), static_cast<short>(events), 0});
      ranks.push_back(static_cast<int>(r));
    }
  }
  ::poll(waits.data(), waits.size(), -1);
  Ready ready;
  {
    std::lock_guard lock(mutex_);
    if (waits[0].revents != 0) {
      uint64_t count = 0;
      static_cast<void>(::read(wake_fd_, &count, sizeof count));
    }
    for (size_t i = 1; i < waits.size(); ++i) {
      if ((waits[i].revents & POLLOUT) != 0) write_to(ranks[i], ready);
      if ((waits[i].revents & ~POLLOUT) != 0) read_from(ranks[i], ready);
    }
  }
  for (const auto& operation : ready) run_on_thread(operation);
}

void Mesh::run_on_thread(const std::shared_ptr<Transfer>& operation) {
  try {
    run(operation);
  } catch (const std::exception& error) {
    std::lock_guard lock(mutex_);
    fail_operation(*operation, error.what());
  }
}

void Mesh::write_to(int rank, Ready& ready) {
  Peer& peer = peers_[rank];
  while (!peer.outgoing.empty() && !peer.lost) {
    Outgoing& message = peer.outgoing.front();
    const size_t header = sizeof message.header, size = message.header.size;
    const size_t header_left = header - std::min(header, message.sent);
    const size_t body_sent = message.sent - (header - header_left);
    iovec parts[] = {
        {reinterpret_cast<char*>(&message.header) + (header - header_left), header_left},
        {const_cast<char*>(message.bytes) + body_sent, size - body_sent}};
    msghdr request{};
    request.msg_iov = parts;
    request.msg_iovlen = 2;
    const ssize_t n = ::sendmsg(peer.socket.fd(), &request, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) return lose(rank);
    message.sent += static_cast<size_t>(n);
    if (message.sent < header + size) continue;
    settle(message.operation, ready);
    peer.outgoing.pop_front();
  }
}

void Mesh::read_from(int rank, Ready& ready) {
  Peer& peer = peers_[rank];
  if (peer.held) return lose(rank);  // detects only the connection's end
  for (size_t moved = 0; moved < kMostAtOnce && !peer.lost && !peer.held;) {
    const size_t header = sizeof peer.header;
    const bool in_header = peer.received < header;
    const size_t body = in_header ? 0 : peer.received - header;
    char* to = in_header                  ? reinterpret_cast<char*>(&peer.header) + peer.received
               : peer.receiving.operation ? peer.receiving.bytes + body
                                          : peer.early.data() + body;
    const size_t left = in_header ? header - peer.received : peer.header.size - body;
    const ssize_t n = ::recv(peer.socket.fd(), to, left, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) return lose(rank);
    moved += static_cast<size_t>(n);
    peer.received += static_cast<size_t>(n);
    if (peer.received == header) begin_message(peer, rank);
    if (peer.lost || peer.held) return;
    if (peer.received == header + peer.header.size) end_message(peer, rank, ready);
  }
}

void Mesh::begin_message(Peer& peer, int rank) {
  peer.receiving = {};
  const auto asked = peer.posted.find(peer.header.tag);
  if (asked != peer.posted.end() && asked->second.size == peer.header.size &&
      asked->second.operation->what == peer.header.what) {
    peer.receiving = std::move(asked->second);
    peer.posted.erase(asked);
    return;
  }
  // A peer that speaks another protocol.
  if (peer.header.size > uint64_t{1} << 40) return lose(rank);
  peer.held = peer.posted.empty() && peer.unasked + peer.header.size > kMostUnasked;
  if (peer.held) return;
  peer.early.resize(peer.header.size);
  peer.unasked += peer.header.size;
}

void Mesh::end_message(Peer& peer, int rank, Ready& ready) {
  peer.received = 0;
  if (peer.receiving.operation) {
    settle(std::exchange(peer.receiving, {}).operation, ready);
    return;
  }
  Arrived message{peer.header.what, std::exchange(peer.early, {})};
  const auto asked = peer.posted.find(peer.header.tag);
  if (asked == peer.posted.end()) {
    peer.arrived[peer.header.tag] = std::move(message);
    return;
  }
  const Posted posted = std::move(asked->second);
  peer.posted.erase(asked);
  peer.unasked -= message.bytes.size();
  take_early(*posted.operation, rank, posted, message);
  settle(posted.operation, ready);
}

void Mesh::take_early(Transfer& operation, int rank, const Posted& posted, const Arrived& message) {
  const std::vector<char>& bytes = message.bytes;
  if (posted.size != bytes.size() || operation.what != message.what) {
    return fail_operation(
        operation, concat(bytes.size(), " bytes of another operation arrived from rank ", rank,
                          ", expected ", posted.size));
  }
  if (!bytes.empty()) std::memcpy(posted.bytes, bytes.data(), bytes.size());
}

void Mesh::settle(const std::shared_ptr<Transfer>& operation, Ready& ready) {
  if (--operation->pending == 0) ready.push_back(operation);
}

void Mesh::fail_operation(Transfer& operation, const std::string& reason) {
  if (operation.done) return;
  operation.error = reason;
  operation.done = true;
  operation.call.ended(false);
  changed_.notify_all();
}

void Mesh::lose(int rank) {
  Peer& peer = peers_[rank];
  peer.lost = true;
  const auto fail = [&](const std::shared_ptr<Transfer>& operation) {
    if (operation) refuse_lost(*operation, rank);
  };
  for (const Outgoing& message : peer.outgoing) fail(message.operation);
  for (const auto& [tag, posted] : peer.posted) fail(posted.operation);
  fail(peer.receiving.operation);
}

bool Mesh::refuse_lost(Transfer& operation, int peer) {
  if (!peers_[peer].lost) return false;
  fail_operation(operation, concat("rank ", peer, " has closed its connection"));
  return true;
}

void Mesh::send(Transfer& operation, int peer, uint64_t step, const void* bytes, size_t size) {
  const Tag tag{operation.communicator, operation.sequence, step};
  {
    std::lock_guard lock(mutex_);
    if (refuse_lost(operation, peer)) return;
    ++operation.pending;
    peers_[peer].outgoing.push_back({operation.shared_from_this(),
                                     {tag, size, operation.what},
                                     static_cast<const char*>(bytes)});
    if (peers_[peer].outgoing.size() > 1) return;  // the thread is already sending to this peer
  }
  wake();
}

void Mesh::receive(Transfer& operation, int peer, uint64_t step, void* bytes, size_t size) {
  const Tag tag{operation.communicator, operation.sequence, step};
  std::lock_guard lock(mutex_);
  Peer& from = peers_[peer];
  const auto early = from.arrived.find(tag);
  if (early == from.arrived.end()) {
    if (refuse_lost(operation, peer)) return;
    ++operation.pending;
    from.posted[tag] = {operation.shared_from_this(), static_cast<char*>(bytes), size};
    if (from.held) {
      begin_message(from, peer);
      from.held = false;
      wake();
    }
    return;
  }
  from.unasked -= early->second.bytes.size();
  take_early(operation, peer, {nullptr, static_cast<char*>(bytes), size}, early->second);
  from.arrived.erase(early);
}

void Mesh::start(const std::shared_ptr<Transfer>& operation) {
  signal_->throw_if_raised();
  run(operation);
}

void Mesh::run(const std::shared_ptr<Transfer>& operation) {
  while (true) {
    {
      std::lock_guard lock(mutex_);
      if (operation->done) return;
      if (operation->next_step == operation->steps.size()) {
        operation->done = true;
        operation->call.ended();
        operation->tensors.clear();
        operation->steps.clear();
        changed_.notify_all();
        return;
      }
      operation->pending = 1;
    }
    operation->steps[operation->next_step++]();
    std::lock_guard lock(mutex_);
    if (--operation->pending > 0) return;
  }
}

bool Mesh::wait(Transfer& operation, std::chrono::seconds timeout) {
  const auto deadline = control::Clock::now() + timeout;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kLookAtSignal, [&] { return operation.done; })) {
    signal_->throw_if_raised();
    if (control::Clock::now() >= deadline) return false;
  }
  return true;
}

}  // namespace tessera::tcp
