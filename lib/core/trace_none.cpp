// SPDX-License-Identifier: MIT
#include "lib/core/trace.h"

namespace tessera {

TraceRange::TraceRange(const char*) {}
TraceRange::~TraceRange() = default;

}  // namespace tessera
