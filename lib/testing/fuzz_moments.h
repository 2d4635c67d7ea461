// SPDX-License-Identifier: MIT
#pragma once
// Comparison of AdamW's bf16 and 8-bit moments with the oracle's exact ones.
#include <string>

#include "lib/testing/fuzz_case.h"
#include "lib/testing/oracle.h"
#include "lib/testing/player.h"
#include "tessera/optim/adamw.h"

namespace tessera::testing {

// Parses FuzzCase::moments. Throws Error(kInvalidArgument) for unknown formats.
MomentsDtype moments_of(const FuzzCase& fuzz_case);

// [Note: kept moments]
// Low-precision moments are compared step by step, like gradients. A strategy's value must be the
// format's nearest to the oracle's moment, within fp32 rounding (Oracle::Moments); the block scales
// too. A second moment in bf16 must be what the step's dither makes of it (own formula here). A
// nonzero 8-bit second moment must not become zero. Blocks start at each parameter's begin here,
// with an independent copy of bitsandbytes' map. The oracle then adopts the strategy's values, so
// that rounding differences do not accumulate.
//
// shown: by "block.parameter kind", unsharded tensors after the step. Throws Difference. Returns
// the largest used share of fp32's tolerance.
double check_moments(const FuzzCase& fuzz_case, Oracle& oracle, const Named& shown,
                     const std::string& at);
// Check after a skipped step: the values of the step before, or zeros. Throws Difference.
void check_moments_unchanged(const Named& shown, const Named& before, const std::string& at);

}  // namespace tessera::testing
