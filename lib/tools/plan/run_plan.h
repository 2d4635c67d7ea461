// SPDX-License-Identifier: MIT
#pragma once
#include <iosfwd>
#include <string>
#include <vector>

namespace tessera::programs {

// tessera-plan: what a run would hold and send, without model, data or GPU. Returns the exit code:
// 3 when it would not fit.
int run_plan(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace tessera::programs
