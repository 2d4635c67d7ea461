// SPDX-License-Identifier: MIT
#pragma once
// The one sentence about communication that has failed: rank, host, operation, tensor, step, phase,
// since when, who had come.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/core/error.h"

namespace tessera {

// An operation as a rank called it.
struct Call {
  std::string communicator;  // empty: none
  int64_t sequence = 0;      // among its collectives, or the messages of the pair
  int source = -1, destination = -1;  // of a message: ranks of the communicator
  std::string operation;              // "all_reduce"
  std::string data;                   // "(5 x Float, sum)": equal on ranks that agree
  std::string label, phase;
  int64_t step = 0;
  double since_s = 0;  // UTC
  bool ended = false;  // well

  bool is_message() const { return source >= 0; }
  bool same_place(const Call& other) const;
  bool agrees_with(const Call& other) const;
  std::string describe() const;  // with label, step and phase
  std::string pack() const;
  static Call unpack(const std::string& bytes);
};

// A communicator that a rank is in.
struct Membership {
  std::string communicator;
  int rank = 0, size = 0;
  int64_t collectives = 0;  // called so far
  bool open = true;
};

// What a rank says when it is asked what it is at.
struct RankStatus {
  std::vector<Membership> communicators;
  Call asked;                // its own call at the place in question
  Call waiting;              // its oldest that has not ended
  std::vector<Call> recent;  // newest first

  std::string pack() const;
  static RankStatus unpack(const std::string& bytes);
};

// All that is known about one failure. ranks: by rank of the world, empty where none answered.
struct CallFailure {
  struct Rank {
    std::string host;
    std::optional<RankStatus> status;
  };
  std::string cause;  // "rank 1 (host a) has died"; empty: the call says it
  Call call;             // empty, or late: what most ranks wait in
  double timeout_s = 0;  // the call is late; 0: it is not
  std::vector<Rank> ranks;

  // Ranks that have not come to where the others called different things, none of them more often
  // than the rest: what these call says who is wrong.
  std::vector<int> undecided() const;
  // kInvalidArgument when ranks called different things, else kUnavailable.
  Error explain() const;
};

}  // namespace tessera
