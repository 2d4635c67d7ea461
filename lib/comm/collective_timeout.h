// SPDX-License-Identifier: MIT
#pragma once
// How long an operation may take before the job is taken for stuck.
#include <chrono>

namespace tessera {

// TESSERA_COLLECTIVE_TIMEOUT_S, read once; 1800 s without it. Throws Error(kInvalidArgument) when
// it is no positive number.
std::chrono::seconds collective_timeout();

}  // namespace tessera
