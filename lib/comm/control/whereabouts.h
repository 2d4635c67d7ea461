// SPDX-License-Identifier: MIT
#pragma once
// Where rank 0 may be found.
#include <functional>
#include <string>
#include <vector>

namespace tessera {

struct Rendezvous {
  std::string host;
  int port = 0;
  std::string secret;
};

struct Whereabouts {
  // To be tried in this order; asked again after every round in vain.
  std::function<std::vector<Rendezvous>()> places;
  // There is one place and no other: what else answers there is an error.
  bool certain = true;
  std::string unknown = "?";  // for messages while places() is empty
};

}  // namespace tessera
