// SPDX-License-Identifier: MIT
#pragma once
// AdamW's moments in bf16 and in 8 bits beside the oracle's exact ones.
#include <string>

#include "lib/testing/fuzz_case.h"
#include "lib/testing/oracle.h"
#include "lib/testing/player.h"
#include "tessera/optim/adamw.h"

namespace tessera::testing {

// What FuzzCase::moments says. Throws Error(kInvalidArgument) for what nobody keeps them in.
MomentsDtype moments_of(const FuzzCase& fuzz_case);

// [Note: kept moments] Moments that are kept in few bits are compared step by step, as gradients
// are: what a strategy shows must be the value of the format nearest to the oracle's moment, but
// for what fp32 may be off (Oracle::Moments); the largest magnitudes of blocks, too. A second
// moment in 8 bits that is not zero must not be shown as zero. Blocks are
// counted here from each parameter's begin, with a map of bitsandbytes' of its own. The oracle then
// takes over what was shown, so no rounding that fell the other way lives on.
//
// shown: by "block.parameter kind", whole tensors after the step. Throws Difference; returns the
// largest share of fp32's tolerance.
double check_moments(const FuzzCase& fuzz_case, Oracle& oracle, const Named& shown,
                     const std::string& at);
// Of a step that was skipped: what stood there after the step before it, or zeros. Throws
// Difference.
void check_moments_unchanged(const Named& shown, const Named& before, const std::string& at);

}  // namespace tessera::testing
