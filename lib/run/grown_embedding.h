// SPDX-License-Identifier: MIT
#pragma once
// --resize_embeddings: rows for token ids beyond the model's embedding.
#include <memory>

#include "tessera/model/model_spec.h"

namespace tessera::programs {

// The weights of `base`, with tables of `old_rows` extended to `rows`. New rows are drawn as by
// transformers' resize_token_embeddings: normal with the mean of the old rows and 1e-9 times their
// covariance. They depend on seed and name only.
std::unique_ptr<const TensorSource> with_grown_embedding(std::unique_ptr<const TensorSource> base,
                                                         int64_t old_rows, int64_t rows,
                                                         uint64_t seed);

}  // namespace tessera::programs
