// SPDX-License-Identifier: MIT
#pragma once
// Runs what the host's kernels do with every instruction set of this machine.
#include <hwy/targets.h>

#include <cstdint>

#include "tests/support/test.hpp"

namespace tessera::test {

// Those that the library was not built for take the next lower one. Returns how many there are.
template <typename Fn>
int with_every_target(const Fn& fn) {
  int count = 0;
  for (int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    INFO("instruction set " << hwy::TargetName(target));
    fn();
    ++count;
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return count;
}

}  // namespace tessera::test
