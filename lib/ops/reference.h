#pragma once
// The ATen version of every operation: right on any device and dtype, the yardstick of the CUDA
// versions.
#include "lib/ops/operations.h"

namespace tessera::ops::reference {

TESSERA_FOR_EACH_OPERATION(TESSERA_DECLARE_OPERATION)

}  // namespace tessera::ops::reference
