// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Finding out which rank called something else.
#include <memory>

#include "tessera/comm/communicator.h"

namespace tessera {

/// Compares every collective across the ranks before it runs, and so do the communicators split
/// from it: calls that differ in operation, dtype, size, reduction or root are
/// Error(kInvalidArgument) on every rank, with the number of the call and what each rank called.
/// Costs one small all-gather and a host synchronisation a call. Messages between pairs are not
/// compared. The local transport checks by itself.
std::unique_ptr<Communicator> check_collectives(std::unique_ptr<Communicator> comm);

}  // namespace tessera
