// SPDX-License-Identifier: MIT
#pragma once
// A hub and its ranks as threads of one process, over real sockets.
#include <sys/socket.h>

#include <functional>
#include <future>
#include <memory>
#include <string>

#include "lib/comm/control/control_client.h"
#include "lib/comm/control/hub.h"
#include "tests/support/ranks.hpp"

namespace tessera::test {

struct Star {
  explicit Star(int size, double timeout_s = 20, double heartbeat_timeout_s = 20,
                size_t most_bytes = control::kMostProven, const LaunchGroup& kin = {})
      : most_bytes(most_bytes) {
    control::Socket listener = control::listen_at("127.0.0.1", 0);
    port = control::port_of(listener);
    hub = std::make_unique<control::Hub>(std::move(listener), size, "job 1", "secret", timeout_s,
                                         heartbeat_timeout_s, most_bytes, kin);
  }
  Endpoints place(const std::string& secret = "secret") const {
    return {[=, this] { return std::vector<Rendezvous>{{"127.0.0.1", port, secret}}; }};
  }
  std::unique_ptr<control::ControlClient> join(int rank, int size,
                                               const std::string& secret = "secret",
                                               const std::string& job = "job 1",
                                               const LaunchGroup& kin = {}) const {
    return std::make_unique<control::ControlClient>(
        place(secret), control::ControlClient::Identity{rank, size, job, kin}, 20,
        std::make_shared<AbortSignal>(), most_bytes);
  }
  const size_t most_bytes;
  int port = 0;
  std::unique_ptr<control::Hub> hub;
};

// A rank controlled call by call.
struct Puppet {
  explicit Puppet(int port)
      : socket(control::connect_to("127.0.0.1", port, 20, "the hub")),
        challenge(hear(control::Kind::kChallenge)) {}
  std::string hear(control::Kind kind) const {
    const control::Received received = control::receive_frame(socket, 20, 1 << 20);
    require(received.how == control::Reception::kFrame && received.frame.kind == kind, "frame ",
            static_cast<int>(kind), " was not received but ",
            static_cast<int>(received.frame.kind));
    return received.frame.payload;
  }
  std::string hello(int rank, int size, const std::string& secret = "secret") const {
    const std::string proof = control::proof_of(challenge, secret, concat("rank ", rank));
    return control::Hello{"job 1", proof, rank, size, "lost-host", "random"}.pack();
  }
  void say_hello(int rank, int size, const std::string& secret = "secret") const {
    require(control::send_frame(socket, control::Kind::kHello, hello(rank, size, secret)),
            "a hello was not sent");
  }
  control::Socket socket;
  std::string challenge;
};

// Message that fn throws on another thread; "" for none.
inline std::future<std::string> error_of(std::function<void()> fn) {
  return std::async(std::launch::async, [fn = std::move(fn)]() -> std::string {
    try {
      fn();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  });
}

// Error of a rank that connects to `answer`, which serves this one caller.
inline std::string error_at(const std::function<void(const control::Socket&)>& answer,
                            const std::function<void(control::ControlClient&)>& then = {}) {
  const control::Socket listener = control::listen_at("127.0.0.1", 0);
  auto server = error_of([&] {
    const control::Socket caller(::accept(listener.fd(), nullptr, nullptr));
    answer(caller);
  });
  const Endpoints there{[&] {
    return std::vector<Rendezvous>{{"127.0.0.1", control::port_of(listener), "s"}};
  }};
  auto rank = error_of([&] {
    control::ControlClient client(there, {1, 2, ""}, 20, std::make_shared<AbortSignal>());
    if (then) then(client);
  });
  const std::string said = rank.get();
  return server.get() + said;
}

}  // namespace tessera::test
