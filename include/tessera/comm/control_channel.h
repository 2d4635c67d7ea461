// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Control channel: all-gather of byte strings between hosts, beside the tensors' communicators.
#include <string>
#include <vector>

namespace tessera {

/// Host-side exchange between ranks. One thread per rank; every rank makes the same calls in the
/// same order.
class ControlChannel {
 public:
  virtual ~ControlChannel() = default;
  virtual int rank() const = 0;  ///< this rank's number, from 0
  virtual int size() const = 0;  ///< the number of ranks
  /// All-gathers the ranks' byte strings, by rank. Collective. Throws Error(kUnavailable) when a
  /// rank has failed.
  virtual std::vector<std::string> exchange(const std::string& bytes) = 0;
};

/// Throws the same Error(kInvalidArgument) on every rank when texts differ between ranks. what: the
/// text's name in the message, which names the ranks that differ from the majority (without one,
/// from rank 0) and the place.
void require_same_on_all_ranks(ControlChannel& channel, const std::string& what,
                               const std::string& text);

/// A list of ranks for messages: "0", "1-7" or "0, 2-3".
std::string rank_list(const std::vector<int>& ranks);

}  // namespace tessera
