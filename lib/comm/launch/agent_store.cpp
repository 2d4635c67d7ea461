// SPDX-License-Identifier: MIT
#include "lib/comm/launch/agent_store.h"

#include <c10/util/Exception.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "lib/comm/control/socket.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(std::max<int64_t>(1, static_cast<int64_t>(seconds * 1000)));
}

// Waits for a listener first: TCPStore's own retries outlast its timeout and flood the log.
void wait_for_listener(const std::string& host, int port, double timeout_s) {
  const auto deadline = control::Clock::now() + milliseconds(timeout_s);
  std::string why;
  while (!control::try_connect(host, port, timeout_s, why).open()) {
    check(control::Clock::now() < deadline, ErrorCode::kUnavailable, "launch: torchrun's store at ",
          host, ":", port, " does not answer: ", why,
          "; is the agent of node rank 0 alive, and MASTER_ADDR reachable from here?");
    ::poll(nullptr, 0, 50);
  }
}

}  // namespace

struct AgentStore::Client {
  std::string place;
  c10::intrusive_ptr<c10d::TCPStore> store;

  template <typename Fn>
  auto use(const char* what, Fn fn) {
    try {
      return fn();
    } catch (const c10::DistStoreError&) {  // a wait beyond its timeout
      throw;
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      fail(ErrorCode::kUnavailable, "launch: torchrun's store at ", place, " could not be ", what,
           ": ", text.substr(0, text.find('\n')),
           "; is its agent alive, and MASTER_ADDR reachable from here?");
    }
  }
};

AgentStore::AgentStore(const std::string& host, int port, double timeout_s)
    : client_(std::make_unique<Client>()) {
  client_->place = concat(host, ":", port);
  wait_for_listener(host, port, timeout_s);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.waitWorkers = false;
  options.timeout = milliseconds(timeout_s);
  client_->store =
      client_->use("reached", [&] { return c10::make_intrusive<c10d::TCPStore>(host, options); });
}

AgentStore::~AgentStore() = default;

void AgentStore::set(const std::string& key, const std::string& value) {
  client_->use("written",
               [&] { client_->store->set(key, std::vector<uint8_t>(value.begin(), value.end())); });
}

std::optional<std::string> AgentStore::get(const std::string& key, double timeout_s) {
  try {
    return client_->use("read", [&]() -> std::optional<std::string> {
      client_->store->wait({key}, milliseconds(timeout_s));
      const std::vector<uint8_t> bytes = client_->store->get(key);
      return std::string(bytes.begin(), bytes.end());
    });
  } catch (const c10::DistStoreError&) {
    return std::nullopt;
  }
}

}  // namespace tessera
