// SPDX-License-Identifier: MIT
#pragma once
// The key-value store that torchrun's agent keeps at MASTER_ADDR:MASTER_PORT.
#include <memory>
#include <optional>
#include <string>

namespace tessera {

class AgentStore {
 public:
  // Connects as a client. Throws Error(kUnavailable) when no store answers within timeout_s.
  AgentStore(const std::string& host, int port, double timeout_s);
  ~AgentStore();
  AgentStore(const AgentStore&) = delete;
  AgentStore& operator=(const AgentStore&) = delete;

  void set(const std::string& key, const std::string& value);
  // Empty when the key is not set within timeout_s.
  std::optional<std::string> get(const std::string& key, double timeout_s);

 private:
  struct Client;
  std::unique_ptr<Client> client_;
};

}  // namespace tessera
