// SPDX-License-Identifier: MIT
#pragma once
// A model with the parameters of a decoder by name and number, and next to no work.
#include "tessera/model/model_spec.h"

namespace tessera::bench {

// Matrices have at least 64 elements, vectors less. So many blocks of BLOOM's twelve parameters,
// between an embedding and a loss that share a table.
ModelSpec model_without_work(int blocks);

}  // namespace tessera::bench
