// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Debugging of mismatched collectives across ranks.
#include <memory>

#include "tessera/comm/communicator.h"

namespace tessera {

/// A communicator that compares every collective across ranks before it runs; splits of it do so,
/// too. Different operations, dtypes, sizes, reductions or roots are Error(kInvalidArgument) on
/// every rank, with the call's number and each rank's call. Costs one small all-gather and a host
/// synchronisation per call. send and recv are not compared. The local transport always checks.
std::unique_ptr<Communicator> check_collectives(std::unique_ptr<Communicator> comm);

}  // namespace tessera
