// SPDX-License-Identifier: MIT
#pragma once
// Matrix products of 16-bit tensors through cuBLASLt. The first products of a shape try the
// library's suggestions and the fastest is kept, for shapes of about as many tokens and in
// user_cache_directory() for later runs, too. Nothing is tried inside a graph capture, with
// deterministic algorithms, and when the environment says TESSERA_GEMM_TUNING=0.
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::ops::cuda {

enum class Epilogue : uint8_t { kNone, kBias, kGeluBias, kGeluAuxBias };

// In cuBLAS' column-major terms: d [m, n] = epilogue(op(a) [m, k] op(b) [k, n] + beta c). The
// leading dimension of c is d's.
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
  void* aux = nullptr;                      // [m, n], receives what goes into the GELU
  at::ScalarType type = at::kBFloat16;      // of a, b, bias and aux
  at::ScalarType out_type = at::kBFloat16;  // of c and d
};

// On the current device and stream. Throws Error(kInternal) when cuBLASLt refuses.
void run_gemm(const Gemm& gemm);
// As ops::products_on_trial().
int64_t products_on_trial();

}  // namespace tessera::ops::cuda
