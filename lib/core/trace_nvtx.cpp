// SPDX-License-Identifier: MIT
#include <nvtx3/nvToolsExt.h>

#include "lib/core/trace.h"

namespace tessera {

TraceRange::TraceRange(const char* name) { nvtxRangePushA(name); }
TraceRange::~TraceRange() { nvtxRangePop(); }

}  // namespace tessera
