// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Asynchronous reduction of a flag over ranks.
#include <ATen/core/Tensor.h>

#include <optional>

#include "tessera/comm/communicator.h"
#include "tessera/core/async_scalars.h"

namespace tessera {

/// Any or all of one flag per rank, started at one step and read at a later one. Neither host nor
/// device waits.
class AsyncFlagReduce {
 public:
  /// any: one true suffices; all: every rank must say true
  enum class Of { kAny, kAll };

  /// Starts the reduction of this rank's flag. Collective.
  AsyncFlagReduce(Communicator& world, Of of, bool mine);
  /// The reduced flag, the same on all ranks; waits for it.
  bool answer();

 private:
  at::Tensor votes_;
  Work work_;
  std::optional<AsyncScalars> copied_;  ///< null on the CPU
};

}  // namespace tessera
