// SPDX-License-Identifier: MIT
#pragma once
// Work of each rank that succeeds only if it succeeds on all ranks.
#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/control_channel.h"

namespace tessera {

// Collective. Runs fn on this rank; returns all ranks' results, by rank. If fn throws anywhere,
// every rank throws the first such rank's Error, naming that rank.
std::vector<std::string> on_all_ranks(ControlChannel& ranks,
                                      const std::function<std::string()>& fn);
// As above without a result.
void all_ranks_do(ControlChannel& ranks, const std::function<void()>& fn);
// Runs fn on rank 0 only; returns its result on every rank.
std::string rank_0_does(ControlChannel& ranks, const std::function<std::string()>& fn);

}  // namespace tessera
