// SPDX-License-Identifier: MIT
#pragma once
// A sum over the TCP transport between two ranks that pretend to be on different hosts.
#include <string>

#include "lib/comm/tcp/tcp_transport.h"
#include "tests/support/ranks.hpp"

namespace tessera::test {

// local: the ranks, which connect through the channel at this address.
inline void require_tcp_sum(const Communicator& local, ControlChannel& channel,
                            const std::string& address) {
  const TransportContext context{{"test", local.rank(), 2, local.rank(), 2},
                                 address,
                                 &channel,
                                 std::make_shared<AbortSignal>(),
                                 {},
                                 {},
                                 {},
                                 std::make_shared<OperationLog>(local.rank()),
                                 {}};
  const auto world = tcp::connect(context);
  const at::Tensor x = at::ones({3});
  world->all_reduce(x).wait();
  require(x[0].item<float>() == 2, "a sum");
}

}  // namespace tessera::test
