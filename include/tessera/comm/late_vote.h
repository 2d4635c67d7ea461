// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// A question to all ranks whose answer can wait.
#include <ATen/core/Tensor.h>

#include <optional>

#include "tessera/comm/communicator.h"
#include "tessera/core/late_values.h"

namespace tessera {

/// Asked at one step and answered at a later one, so that neither the host nor the device waits.
class LateVote {
 public:
  /// Whether one true makes the answer true, or all are needed.
  enum class Of { kAny, kAll };

  /// Collective.
  LateVote(Communicator& world, Of of, bool mine);
  /// Whether any rank, or every rank, has said true; the same on all.
  bool answer();

 private:
  at::Tensor votes_;
  Work work_;
  std::optional<LateValues> copied_;  ///< from a device
};

}  // namespace tessera
