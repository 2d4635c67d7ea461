// SPDX-License-Identifier: MIT
#pragma once
// A model with a decoder's parameters, by name and number, and hardly any work.
#include "tessera/model/model_spec.h"

namespace tessera::bench {

// Blocks of BLOOM's twelve parameters between an embedding and a loss with a tied table. Matrices
// have at least 64 elements, vectors fewer.
ModelSpec model_without_work(int blocks);

}  // namespace tessera::bench
