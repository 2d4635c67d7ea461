// SPDX-License-Identifier: MIT
#pragma once
// A plan as text and as JSON.
#include <string>

#include "lib/tools/plan/plan.h"

namespace tessera::programs {

std::string plan_text(const Prepared& model, const RunPlan& run, const PlannedHosts& hosts);
std::string plan_json(const Prepared& model, const RunPlan& run, const PlannedHosts& hosts);

}  // namespace tessera::programs
