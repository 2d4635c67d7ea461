// SPDX-License-Identifier: MIT
#pragma once
// Rendezvous: how ranks learn rank 0's address.
#include <optional>
#include <string>

#include "lib/comm/control/endpoints.h"
#include "lib/comm/control/socket.h"
#include "lib/comm/launch/launcher.h"
#include "lib/comm/launch/transports.h"

namespace tessera {

struct RendezvousAddress {
  Endpoints rank_0;
  std::optional<control::Socket> listener;  // rank 0 only
  std::string secret;                       // rank 0 only
};

// Rank 0 listens and publishes its address; the other ranks read it. over_mpi: null when MPI cannot
// broadcast. Throws Error(kInvalidArgument) for a port that is taken, an unresolvable host, or
// several hosts without a secret. Throws Error(kUnavailable) when the launcher's channel fails.
RendezvousAddress arrange_meeting(const Launch& launch, RendezvousExchange over_mpi,
                                  double timeout_s);

// TESSERA_JOB_SECRET, or the content of TESSERA_JOB_SECRET_FILE without a last line end; only its
// owner may be able to read that file. "" when neither is set, or for the word "none", which sets
// has_said_none.
std::string job_secret(const Environment& environment, bool& has_said_none);

}  // namespace tessera
