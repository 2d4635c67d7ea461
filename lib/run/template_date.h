// SPDX-License-Identifier: MIT
#pragma once
// The date that chat templates write (strftime_now).
#include <string>

#include "lib/settings/options.h"

namespace tessera::programs {

// --template_date; else that of the checkpoint that the run goes on from; "": today's.
std::string template_date(const TrainOptions& options);

}  // namespace tessera::programs
