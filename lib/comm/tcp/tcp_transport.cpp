#include "lib/comm/tcp/tcp_transport.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <numeric>

#include "lib/comm/bootstrap/wire.h"
#include "lib/comm/tcp/tcp_communicator.h"
#include "tessera/core/error.h"

namespace tessera::tcp {
namespace {

using control::Socket;

constexpr double kConnectTimeout = 30;
constexpr double kGreetingTimeout = 5;

// The lower rank of a pair listens. The caller shows that it was told the job's token over the
// control channel, and for whom it means to call.
std::string greeting(const std::string& token, int caller, int listener) {
  return control::proof_of(token, "", concat("rank ", caller, " to rank ", listener));
}

Socket call(const TransportContext& context, int peer, const std::vector<std::string>& door,
            const std::string& token) {
  Socket socket = control::connect_to(door.at(0), std::stoi(door.at(1)), kConnectTimeout,
                                      concat("rank ", peer));
  const int me = context.launch.rank;
  control::send_frame(socket, control::Kind::kHello,
                      control::pack({std::to_string(me), greeting(token, me, peer)}));
  return socket;
}

// The caller's rank; -1 when it is no rank of this job.
int greet(const Socket& socket, const LaunchInfo& launch, const std::string& token) {
  control::limit_receives(socket, kGreetingTimeout);
  const auto frame = control::receive_frame(socket);
  control::limit_receives(socket, 0);
  if (!frame || frame->kind != control::Kind::kHello) return -1;
  for (int r = launch.rank + 1; r < launch.world_size; ++r) {
    if (frame->payload == control::pack({std::to_string(r), greeting(token, r, launch.rank)})) {
      return r;
    }
  }
  return -1;
}

void accept_callers(const TransportContext& context, const Socket& listener,
                    const std::string& token, std::vector<Socket>& peers) {
  const LaunchInfo& launch = context.launch;
  const auto deadline = control::Clock::now() + std::chrono::duration<double>(kConnectTimeout);
  while (true) {
    std::vector<int> missing;
    for (int r = launch.rank + 1; r < launch.world_size; ++r) {
      if (!peers[r].open()) missing.push_back(r);
    }
    if (missing.empty()) return;
    context.signal->throw_if_raised();
    check(control::Clock::now() < deadline, ErrorCode::kUnavailable, "tcp: rank ",
          rank_list(missing), " did not connect to rank ", launch.rank, " at ", context.address,
          " within ", kConnectTimeout,
          " s; can the hosts reach each other there? TESSERA_HOST_ADDRESS names another address");
    pollfd wait{listener.fd(), POLLIN, 0};
    if (::poll(&wait, 1, 100) <= 0) continue;
    Socket socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.open()) continue;
    const int rank = greet(socket, launch, token);
    if (rank >= 0) peers[rank] = std::move(socket);
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
  std::vector<int> ranks(launch.world_size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_unique<TcpCommunicator>("world", launch.rank, std::move(ranks), std::move(job));
}

}  // namespace tessera::tcp
