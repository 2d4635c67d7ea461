// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The small talk of ranks before and beside their tensors: byte strings on the host.
#include <string>
#include <vector>

namespace tessera {

/// One thread a rank; every rank makes the same calls in the same order.
class ControlChannel {
 public:
  virtual ~ControlChannel() = default;
  virtual int rank() const = 0;  ///< this rank's number, from 0
  virtual int size() const = 0;  ///< the number of ranks
  /// Every rank's bytes, by rank. Collective. Throws Error(kUnavailable) when a rank has failed.
  virtual std::vector<std::string> exchange(const std::string& bytes) = 0;
};

/// Throws the same Error(kInvalidArgument) on every rank when the ranks passed different texts;
/// what names the text in the message, which says which ranks differ from the majority (from rank 0
/// when there is none) and where.
void require_same_on_all_ranks(ControlChannel& channel, const std::string& what,
                               const std::string& text);

/// "0", "1-7" or "0, 2-3": ranks as messages print them.
std::string rank_list(const std::vector<int>& ranks);

}  // namespace tessera
