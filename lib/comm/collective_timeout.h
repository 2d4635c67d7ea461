// SPDX-License-Identifier: MIT
#pragma once
// Time limit of one operation; beyond it the job counts as stuck.
#include <chrono>

namespace tessera {

// TESSERA_COLLECTIVE_TIMEOUT_S, read once; 1800 s without it. Throws Error(kInvalidArgument) when
// it is no positive number.
std::chrono::seconds collective_timeout();

}  // namespace tessera
