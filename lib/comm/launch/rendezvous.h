// SPDX-License-Identifier: MIT
#pragma once
// How the ranks of a job find each other.
#include <optional>
#include <string>

#include "lib/comm/control/socket.h"
#include "lib/comm/control/whereabouts.h"
#include "lib/comm/launch/launcher.h"
#include "lib/comm/launch/transports.h"

namespace tessera {

struct MeetingPlace {
  Whereabouts rank_0;
  std::optional<control::Socket> listener;  // on rank 0
  std::string secret;                       // on rank 0
};

// Rank 0 starts to listen and says where, the others learn it. over_mpi: null when MPI cannot tell.
// Throws Error(kInvalidArgument) for a port that is taken, a host that does not resolve, several
// hosts without a secret; Error(kUnavailable) when the launcher's own channel fails.
MeetingPlace arrange_meeting(const Launch& launch, RendezvousExchange over_mpi, double timeout_s);

// TESSERA_JOB_SECRET, or the content of the file TESSERA_JOB_SECRET_FILE without its last line's
// end, which its owner alone may read; "" when there is neither and for the word "none", in which
// case has_said_none is true.
std::string job_secret(const Environment& environment, bool& has_said_none);

}  // namespace tessera
