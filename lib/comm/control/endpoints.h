// SPDX-License-Identifier: MIT
#pragma once
// Addresses at which rank 0 may listen.
#include <functional>
#include <string>
#include <vector>

namespace tessera {

struct Rendezvous {
  std::string host;
  int port = 0;
  std::string secret;
};

struct Endpoints {
  // Candidates in the order of attempts; read again after each failed round.
  std::function<std::vector<Rendezvous>()> places;
  // The only possible address: another process that answers there is an error.
  bool certain = true;
  std::string unknown = "?";  // shown in messages while places() is empty
};

}  // namespace tessera
