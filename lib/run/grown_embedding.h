// SPDX-License-Identifier: MIT
#pragma once
// --resize_embeddings: rows for the ids that a tokenizer has beyond the model's embedding.
#include <memory>

#include "tessera/model/model_spec.h"

namespace tessera::programs {

// The weights of `base`, whose tables of `old_rows` have `rows`. As transformers'
// resize_token_embeddings draws them, new rows are normal with the mean of the old ones and 1e-9
// times their covariance; the same for one seed and name, wherever they are read.
std::unique_ptr<const TensorSource> with_grown_embedding(std::unique_ptr<const TensorSource> base,
                                                         int64_t old_rows, int64_t rows,
                                                         uint64_t seed);

}  // namespace tessera::programs
