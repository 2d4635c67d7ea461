// SPDX-License-Identifier: MIT
#pragma once
// Runs the host kernels with every instruction set of this machine.
#include <hwy/targets.h>

#include <cstdint>

#include "tests/support/test.hpp"

namespace tessera::test {

// Targets missing in the build use the next lower one. Returns their number.
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
