// SPDX-License-Identifier: MIT
#pragma once
// The operations that exist in several versions, each with the signature of its public declaration.
// To add one: declare it in a header of tessera/ops, name it here, define it in
// lib/ops/reference.cpp and lib/ops/cuda, its work in lib/ops/work.cpp, and call TESSERA_DISPATCH
// for it in lib/ops/kernels.cpp.
#include "lib/ops/clamped_swiglu.h"
#include "lib/ops/expert_rows.h"
#include "lib/ops/fp8.h"
#include "lib/ops/fp8_codes.h"
#include "lib/ops/grouped_product.h"
#include "lib/ops/update.h"
#include "tessera/ops/kernels.h"

#define TESSERA_FOR_EACH_OPERATION(X) \
  X(add_column_sums)                  \
  X(linear_forward)                   \
  X(linear_backward_input_out)        \
  X(linear_backward_weight)           \
  X(linear_backward_bias)             \
  X(fp8_largest)                      \
  X(fp8_cast)                         \
  X(fp8_layouts)                      \
  X(fp8_turned)                       \
  X(fp8_decode)                       \
  X(fp8_product)                      \
  X(linear_gelu_forward)              \
  X(gelu_tanh_forward)                \
  X(gelu_tanh_backward)               \
  X(gelu_tanh_backward_)              \
  X(swiglu_forward)                   \
  X(swiglu_backward_)                 \
  X(clamped_swiglu_forward)           \
  X(clamped_swiglu_backward)          \
  X(grouped_product_into)             \
  X(dispatch_rows)                    \
  X(combine_rows)                     \
  X(weighted_swiglu)                  \
  X(weighted_swiglu_backward_)        \
  X(layer_norm_forward)               \
  X(rms_norm_forward)                 \
  X(norm_backward)                    \
  X(dropout_add)                      \
  X(dropout_backward)                 \
  X(rotary_)                          \
  X(head_norm_)                       \
  X(head_norm_backward_)              \
  X(attention_forward)                \
  X(attention_backward)               \
  X(attends_to_sequences)             \
  X(attention_to_cache)               \
  X(keep_in_cache)                    \
  X(embedding_backward)               \
  X(logits_forward)                   \
  X(cross_entropy_)                   \
  X(cross_entropy_statistics)         \
  X(cross_entropy_gradient_)          \
  X(adamw_update)                     \
  X(square_sum)                       \
  X(clipping)

// Declares a function of the current namespace with the public signature.
#define TESSERA_DECLARE_OPERATION(name) decltype(::tessera::ops::name) name;
