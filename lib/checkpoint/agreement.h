// SPDX-License-Identifier: MIT
#pragma once
// Work that every rank does on its own and that counts only when it went well on all.
#include <functional>
#include <string>
#include <vector>

#include "tessera/comm/control_channel.h"

namespace tessera {

// Collective. Runs fn on this rank; returns what it returned on every rank, by rank. When it threw
// on any, every rank throws the Error of the first one, naming that rank.
std::vector<std::string> on_all_ranks(ControlChannel& ranks,
                                      const std::function<std::string()>& fn);
// The same for work without a result.
void all_ranks_do(ControlChannel& ranks, const std::function<void()>& fn);
// Rank 0 alone runs fn; returns its result on every rank.
std::string rank_0_does(ControlChannel& ranks, const std::function<std::string()>& fn);

}  // namespace tessera
