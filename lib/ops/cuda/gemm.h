// SPDX-License-Identifier: MIT
#pragma once
// Products of 16-bit and 8-bit matrices through cuBLASLt, with autotuning. The first products of a
// shape try the library's suggestions, and the fastest is kept for similar numbers of tokens, also
// in user_cache_directory() for later runs. No trials during graph capture, with deterministic
// algorithms, or with TESSERA_GEMM_TUNING=0.
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::ops::cuda {

enum class Epilogue : uint8_t { kNone, kBias, kGeluBias, kGeluAuxBias };

// In cuBLAS' column-major terms: d [m, n] = epilogue(op(a) [m, k] op(b) [k, n] + beta c). c has d's
// leading dimension.
struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  const void *a = nullptr, *b = nullptr;
  int64_t lda = 0, ldb = 0, ldd = 0;
  void* d = nullptr;
  const void* c = nullptr;  // null with beta != 0: d itself
  float beta = 0;
  Epilogue epilogue = Epilogue::kNone;
  const void* bias = nullptr;
  void* aux = nullptr;                  // [m, n], receives the input of the GELU
  at::ScalarType type = at::kBFloat16;  // of a, b, bias and aux
  // 8 bits: b's type, and what multiplies the product: device scalars. Only with transpose_a alone,
  // and without GELU; a bias has out_type.
  at::ScalarType b_type = at::ScalarType::Undefined;
  const float *a_scale = nullptr, *b_scale = nullptr;
  at::ScalarType out_type = at::kBFloat16;  // of c and d
};

// Runs on the current device and stream. Throws Error(kInternal) when cuBLASLt fails.
void run_gemm(const Gemm& gemm);
// See ops::products_in_tuning().
int64_t products_in_tuning();

}  // namespace tessera::ops::cuda
