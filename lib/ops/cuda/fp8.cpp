// SPDX-License-Identifier: MIT
// Casts to 8 bits, and products of 8-bit matrices by cuBLAS.
#include "lib/ops/fp8.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>

#include "lib/ops/cuda/entries.h"
#include "lib/ops/cuda/gemm.h"
#include "lib/ops/cuda/support.h"

namespace tessera::ops::cuda {
namespace {

// cuBLAS multiplies 8-bit matrices from compute capability 8.9 on.
bool has_products() {
  const cudaDeviceProp* const device = at::cuda::getCurrentDeviceProperties();
  return device->major * 10 + device->minor >= 89;
}

// The inner dimension filled with zeros to a multiple of 16.
at::Tensor filled(const at::Tensor& codes) {
  const int64_t missing = (16 - codes.size(1) % 16) % 16;
  if (missing == 0) return codes;
  return at::constant_pad_nd(codes.view(at::kByte), {0, missing}).view(codes.scalar_type());
}

// cuBLAS takes scales at multiples of 16 bytes.
at::Tensor aligned(const at::Tensor& scale) { return is_aligned(scale) ? scale : scale.clone(); }

// Row-major left right^T is column-major right^T left.
// Terms that fit() takes into the product are its bias and residual.
Gemm tensorwise_gemm(const Fp8Matrix& left, const Fp8Matrix& right, const at::Tensor& result,
                     const Fp8Terms& terms) {
  Gemm g;
  g.m = right.codes.size(0), g.n = left.codes.size(0), g.k = left.codes.size(1);
  g.transpose_a = true;
  g.a = right.codes.const_data_ptr(), g.lda = g.k;
  g.b = left.codes.const_data_ptr(), g.ldb = g.k;
  g.d = result.data_ptr(), g.ldd = g.m;
  g.beta = terms.add || terms.residual.defined() ? 1 : 0;
  g.c = terms.add ? nullptr : data_or_null(terms.residual);
  g.bias = data_or_null(terms.bias);
  if (g.bias) g.epilogue = Epilogue::kBias;
  g.type = right.codes.scalar_type(), g.b_type = left.codes.scalar_type();
  g.a_scale = static_cast<const float*>(right.scale.const_data_ptr());
  g.b_scale = static_cast<const float*>(left.scale.const_data_ptr());
  g.out_type = result.scalar_type();
  return g;
}

// Whether cuBLAS adds this term: 16 bits, as the product has them.
bool is_term(const at::Tensor& term, const at::Tensor& product) {
  return term.defined() && fits(product.scalar_type(), {term});
}

// x [rows, inner], contiguous or turned.
Fp8Cast arguments_of(const at::Tensor& x, bool rowwise) {
  return {.x = x.const_data_ptr(),
          .rows = x.size(0),
          .inner = x.size(1),
          .turned = !x.is_contiguous(),
          .rowwise = rowwise};
}

bool casts(const at::Tensor& x) { return fp8_cast_fits(x) && is_aligned(x); }

}  // namespace

at::Tensor fp8_largest(const at::Tensor& x, Fp8 scaling) {
  if (!casts(x)) return reference::fp8_largest(x, scaling);
  const bool rowwise = scaling == Fp8::kRowwise;
  at::Tensor largest;
  float* const zeros = zeroed(&largest, x, rowwise ? x.size(0) : 1);
  fp8_largest(type_of(x), arguments_of(x, rowwise), zeros, stream());
  check_launch("fp8_largest");
  return largest;
}

Fp8Matrix fp8_cast(const at::Tensor& x, const at::Tensor& largest, at::ScalarType dtype) {
  if (!casts(x)) return reference::fp8_cast(x, largest, dtype);
  const Fp8Matrix result{empty(x.sizes(), x, dtype), empty(largest.sizes(), x, at::kFloat)};
  Fp8Cast cast = arguments_of(x, largest.numel() > 1);
  cast.largest = static_cast<const float*>(largest.const_data_ptr());
  cast.format = dtype == at::kFloat8_e5m2 ? Fp8Format::kE5m2 : Fp8Format::kE4m3;
  cast.codes = result.codes.data_ptr(), cast.scale = static_cast<float*>(result.scale.data_ptr());
  fp8_cast(type_of(x), cast, stream());
  check_launch("fp8_cast");
  return result;
}

Fp8Layouts fp8_layouts(const at::Tensor& x, const at::Tensor& largest, at::ScalarType dtype,
                       WantedLayouts wanted) {
  if (!fp8_layouts_fit(x) || !is_aligned(x)) {
    return reference::fp8_layouts(x, largest, dtype, wanted);
  }
  const at::Tensor scale = empty(largest.sizes(), x, at::kFloat);
  const int64_t rows = x.size(0), inner = x.size(1), stride = (rows + 15) / 16 * 16;
  Fp8Layouts result;
  if (wanted.rows) result.rows = {empty(x.sizes(), x, dtype), scale};
  if (wanted.columns) result.columns = {empty({inner, stride}, x, dtype), scale};
  fp8_layouts(type_of(x),
              {.x = x.const_data_ptr(),
               .rows = rows,
               .inner = inner,
               .largest = static_cast<const float*>(largest.const_data_ptr()),
               .format = dtype == at::kFloat8_e5m2 ? Fp8Format::kE5m2 : Fp8Format::kE4m3,
               .codes = data_or_null(result.rows.codes),
               .turned = data_or_null(result.columns.codes),
               .stride = stride,
               .scale = static_cast<float*>(scale.data_ptr())},
              stream());
  check_launch("fp8_layouts");
  return result;
}

Fp8Matrix fp8_turned(const Fp8Matrix& x) {
  if (!fp8_turned_fits(x) || !is_aligned(x.codes)) return reference::fp8_turned(x);
  const int64_t rows = x.codes.size(0), inner = x.codes.size(1), stride = (rows + 15) / 16 * 16;
  const Fp8Matrix result{empty({inner, stride}, x.codes, x.codes.scalar_type()), x.scale};
  fp8_turned({.codes = x.codes.const_data_ptr(),
              .rows = rows,
              .inner = inner,
              .turned = result.codes.data_ptr(),
              .stride = stride},
             stream());
  check_launch("fp8_turned");
  return result;
}

void fp8_decode(const Fp8Matrix& x, const at::Tensor& values) {
  const at::ScalarType type = values.scalar_type();
  const bool known = type == at::kBFloat16 || type == at::kHalf || type == at::kFloat;
  if (!known || x.codes.numel() % 16 != 0 || !x.codes.is_contiguous() || !values.is_contiguous() ||
      !is_aligned(x.codes) || !is_aligned(values) || x.codes.numel() == 0) {
    return reference::fp8_decode(x, values);
  }
  fp8_decode(type_of(values),
             {.codes = x.codes.const_data_ptr(),
              .numel = x.codes.numel(),
              .scale = static_cast<const float*>(x.scale.const_data_ptr()),
              .values = values.data_ptr()},
             stream());
  check_launch("fp8_decode");
}

at::Tensor fp8_product(const Fp8Matrix& left, const Fp8Matrix& right, at::ScalarType dtype,
                       const Fp8Terms& terms) {
  if (terms.result.defined()) dtype = terms.result.scalar_type();
  if (!has_products() || !fp8_product_fits(left, right, dtype)) {
    return reference::fp8_product(left, right, dtype, terms);
  }
  const Fp8Matrix a{filled(left.codes), aligned(left.scale)},
      b{filled(right.codes), aligned(right.scale)};
  const bool direct = terms.result.defined() && terms.result.is_contiguous();
  at::Tensor product;
  Fp8Terms outside = terms;  // added after the product
  // A single row has one scale in either way.
  if (left.scale.numel() == 1 && right.scale.numel() == 1) {
    product =
        direct ? terms.result : empty({left.codes.size(0), right.codes.size(0)}, a.codes, dtype);
    Fp8Terms inside;
    inside.add = direct && terms.add;
    if (is_term(terms.bias, product)) std::swap(inside.bias, outside.bias);
    if (!inside.add && is_term(terms.residual, product)) {
      std::swap(inside.residual, outside.residual);
    }
    run_gemm(tensorwise_gemm(a, b, product, inside));
    if (direct && !outside.bias.defined() && !outside.residual.defined()) return product;
    outside.add = terms.add && !inside.add;
  } else {  // with a scale a row the product is in bfloat16
    product = at::_scaled_mm(a.codes, b.codes.t(), a.scale, b.scale.t(), /*bias=*/{},
                             /*scale_result=*/{}, at::kBFloat16, /*use_fast_accum=*/false);
  }
  if (outside.bias.defined()) product.add_(outside.bias);
  if (outside.residual.defined()) product.add_(outside.residual);
  if (!terms.result.defined()) return product.to(dtype);
  if (product.is_same(terms.result)) return product;
  return outside.add ? at::Tensor(terms.result).add_(product)
                     : at::Tensor(terms.result).copy_(product);
}

}  // namespace tessera::ops::cuda
