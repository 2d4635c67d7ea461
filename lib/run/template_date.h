// SPDX-License-Identifier: MIT
#pragma once
// Date written by chat templates (strftime_now).
#include <string>

#include "lib/settings/options.h"

namespace tessera::programs {

// --template_date, else the resumed checkpoint's date; "": today's.
std::string template_date(const TrainOptions& options);

}  // namespace tessera::programs
