// SPDX-License-Identifier: MIT
#pragma once
// Builds the diagnostic for a failed collective: rank, host, operation, tensor, step, phase, since
// when, and which ranks had arrived.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/core/error.h"

namespace tessera {

// An operation as a rank called it.
struct Call {
  std::string communicator;  // empty: no call
  int64_t sequence = 0;      // index among the communicator's collectives, or the pair's messages
  int source = -1, destination = -1;  // ranks within the communicator; messages only
  std::string operation;              // "all_reduce"
  std::string data;                   // "(5 x Float, sum)": equal on ranks that agree
  std::string label, phase;
  int64_t step = 0;
  double since_s = 0;  // start time, UTC seconds
  bool ended = false;  // completed without error

  bool is_message() const { return source >= 0; }
  bool same_place(const Call& other) const;
  bool agrees_with(const Call& other) const;
  std::string describe() const;  // Text with label, step and phase.
  std::string pack() const;
  static Call unpack(const std::string& bytes);
};

// A communicator that a rank belongs to.
struct Membership {
  std::string communicator;
  int rank = 0, size = 0;
  int64_t collectives = 0;  // collectives called so far
  bool open = true;
};

// A rank's answer to the hub's question about its current calls.
struct RankStatus {
  std::vector<Membership> communicators;
  Call asked;                // the rank's own call at the sequence number in question
  Call waiting;              // its oldest call that has not ended
  std::vector<Call> recent;  // newest first

  std::string pack() const;
  static RankStatus unpack(const std::string& bytes);
};

// Everything known about one failure. ranks: by world rank, empty where a rank gave no answer.
struct CallFailure {
  struct Rank {
    std::string host;
    std::optional<RankStatus> status;
  };
  std::string cause;     // "rank 1 (host a) has died"; empty: the call itself tells
  Call call;             // empty, or overdue: the call that most ranks wait in
  double timeout_s = 0;  // > 0: the call is overdue by this limit; 0: it is not
  std::vector<Rank> ranks;

  // Ranks that have not reached a call at which the others disagree without a majority. Their call
  // decides which rank is wrong.
  std::vector<int> undecided() const;
  // kInvalidArgument when ranks called different operations, else kUnavailable.
  Error explain() const;
};

}  // namespace tessera
