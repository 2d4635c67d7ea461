// SPDX-License-Identifier: MIT
#include "lib/comm/tcp/tcp_transport.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <numeric>

#include "lib/comm/control/pending_connections.h"
#include "lib/comm/tcp/tcp_communicator.h"
#include "tessera/core/error.h"

namespace tessera::tcp {
namespace {

using control::Clock;
using control::Socket;

constexpr double kConnectTimeout = 30;

// Proof that the caller got the job's token over the control channel, and which rank it means to
// call. The lower rank of a pair listens.
std::string greeting(const std::string& token, int caller, int listener) {
  const std::string pair = concat("rank ", caller, " to rank ", listener);
  return control::pack({std::to_string(caller), control::proof_of("", token, pair)});
}

Clock::time_point connect_deadline() {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(kConnectTimeout));
}

// Connects, and retries if a busy listener closed the connection.
Socket call(const TransportContext& context, int peer, const std::vector<std::string>& door,
            const std::string& token) {
  const int me = context.launch.rank;
  const auto deadline = connect_deadline();
  while (true) {
    Socket socket = control::connect_to(door.at(0), std::stoi(door.at(1)), kConnectTimeout,
                                        concat("rank ", peer));
    const bool greeted =
        control::send_frame(socket, control::Kind::kHello, greeting(token, me, peer));
    pollfd wait{socket.fd(), POLLIN, 0};
    while (greeted && Clock::now() < deadline && ::poll(&wait, 1, 100) <= 0) {
      context.signal->throw_if_raised();
    }
    const control::Received answer = control::receive_frame(socket, 0);
    if (answer.how == control::Reception::kFrame && answer.frame.kind == control::Kind::kAdmit) {
      return socket;
    }
    context.signal->throw_if_raised();
    check(Clock::now() < deadline, ErrorCode::kUnavailable, "tcp: rank ", peer, " at ", door.at(0),
          " did not answer rank ", me, " within ", kConnectTimeout, " s");
    ::poll(nullptr, 0, 20);
  }
}

void accept_callers(const TransportContext& context, const Socket& listener,
                    const std::string& token, std::vector<Socket>& peers) {
  const LaunchInfo& launch = context.launch;
  const auto deadline = connect_deadline();
  control::never_block(listener);
  control::PendingConnections room(false);
  const auto greet = [&](control::Caller&& caller, const control::Frame& frame) {
    if (frame.kind != control::Kind::kHello || !caller.received.empty()) return;
    for (int r = launch.rank + 1; r < launch.world_size; ++r) {
      if (peers[r].open() || frame.payload != greeting(token, r, launch.rank)) continue;
      control::tell(caller.socket, control::Kind::kAdmit, "");
      peers[r] = std::move(caller.socket);
      return;
    }
  };
  while (true) {
    std::vector<int> missing;
    for (int r = launch.rank + 1; r < launch.world_size; ++r) {
      if (!peers[r].open()) missing.push_back(r);
    }
    if (missing.empty()) return;
    context.signal->throw_if_raised();
    check(Clock::now() < deadline, ErrorCode::kUnavailable, "tcp: rank ", rank_list(missing),
          " did not connect to rank ", launch.rank, " at ", context.address, " within ",
          kConnectTimeout,
          " s; can the hosts reach each other there? TESSERA_HOST_ADDRESS names another address");
    std::vector<pollfd> waits;
    room.add_to(waits, listener);
    ::poll(waits.data(), waits.size(), room.patience());
    room.serve(waits.data(), listener, greet);
  }
}

}  // namespace

std::string unusable_because(const LaunchInfo&) { return ""; }

std::unique_ptr<Communicator> connect(const TransportContext& context) {
  const LaunchInfo& launch = context.launch;
  std::vector<Socket> peers(launch.world_size);
  if (launch.world_size > 1) {
    const Socket listener = control::listen_at(context.address, 0);
    std::vector<std::vector<std::string>> doors;
    for (const std::string& bytes : context.control->exchange(
             control::pack({context.address, std::to_string(control::port_of(listener)),
                            control::random_text()}))) {
      doors.push_back(control::unpack(bytes));
    }
    const std::string& token = doors.front().at(2);
    for (int r = 0; r < launch.rank; ++r) peers[r] = call(context, r, doors[r], token);
    accept_callers(context, listener, token, peers);
  }
  for (const Socket& socket : peers) {
    const int on = 1;
    setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  auto job = std::make_shared<Job>();
  job->mesh = std::make_unique<Mesh>(std::move(peers), context.signal);
  job->abort = context.abort;
  job->log = context.log;
  job->report = context.report;
  std::vector<int> ranks(launch.world_size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_unique<TcpCommunicator>("world", launch.rank, std::move(ranks), std::move(job));
}

}  // namespace tessera::tcp
