// SPDX-License-Identifier: MIT
#include "lib/ops/attention_kernel.h"

#include <cmath>

#include "lib/core/meta.h"

namespace tessera::ops {
namespace {

bool is_half(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}

// What all kernels ask for. shares: whether the kernel lets query heads share a key head.
bool is_plain(const AttentionArguments& a, bool shares) {
  const at::Tensor &q = a.query, &k = a.key, &v = a.value;
  if (q.dim() != 4 || k.dim() != 4 || v.dim() != 4 || q.size(2) == 0 || k.size(2) == 0) {
    return false;
  }
  const bool same_dtype = q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type();
  const bool same_batch = q.size(0) == k.size(0) && q.size(0) == v.size(0);
  if (!same_dtype || !same_batch || k.size(1) != v.size(1)) return false;
  return a.shares_heads && shares ? k.size(1) > 0 && q.size(1) % k.size(1) == 0
                                  : q.size(1) == k.size(1);
}

bool has_dense_rows(const AttentionArguments& a) {
  return a.query.stride(-1) == 1 && a.key.stride(-1) == 1 && a.value.stride(-1) == 1;
}

// A mask without gradient, [queries, keys] or [batch, heads, queries, keys], whose extents may be
// 1.
bool mask_fits(const AttentionArguments& a) {
  if (!a.mask) return true;
  const at::Tensor& mask = *a.mask;
  const auto fits = [](int64_t extent, int64_t whole) { return extent == 1 || extent == whole; };
  if (mask.requires_grad() || (mask.dim() != 2 && mask.dim() != 4)) return false;
  if (!fits(mask.size(-2), a.query.size(2)) || !fits(mask.size(-1), a.key.size(2))) return false;
  return mask.dim() == 2 ||
         (fits(mask.size(0), a.query.size(0)) && fits(mask.size(1), a.query.size(1)));
}

bool has_one_width(const AttentionArguments& a) {
  return a.query.size(3) == a.key.size(3) && a.query.size(3) == a.value.size(3);
}

AttentionKernel kernel_of_cpu(const AttentionArguments& a) {
  const bool fits = a.dropout == 0 && is_plain(a, /*shares=*/true) && mask_fits(a) &&
                    has_one_width(a) && has_dense_rows(a) && a.query.is_floating_point();
  return fits ? AttentionKernel::kFlash : AttentionKernel::kMath;
}

bool fits_cudnn(const AttentionArguments& a) {
  constexpr int64_t kMostWidth = 128, kWideQuery = 192, kMultiple = 8, kMostRows = 65535;
  if (!is_plain(a, /*shares=*/true) || !is_half(a.query) || !mask_fits(a)) return false;
  const int64_t n = a.query.size(3), m = a.value.size(3);
  const bool widths = (n <= kMostWidth && m <= kMostWidth) || (n == kWideQuery && m == kMostWidth);
  const double sixteenths = a.dropout * 16;
  return widths && n % kMultiple == 0 && m % kMultiple == 0 && a.key.size(3) == n &&
         a.key.size(2) != 1 && a.query.size(0) <= kMostRows && a.query.size(1) <= kMostRows &&
         sixteenths == std::floor(sixteenths) && (a.dropout == 0 || a.query.size(2) != 1);
}

bool fits_flash(const AttentionArguments& a) {
  constexpr int64_t kMostWidth = 256;
  return is_plain(a, /*shares=*/true) && is_half(a.query) && !a.mask && has_one_width(a) &&
         a.query.size(3) <= kMostWidth && (!a.is_causal || a.query.size(2) == a.key.size(2));
}

bool fits_efficient(const AttentionArguments& a) {
  if (!is_plain(a, /*shares=*/false)) return false;
  const bool half = is_half(a.query);
  if (!half && a.query.scalar_type() != at::kFloat) return false;
  const int64_t multiple = half ? 8 : 4, n = a.query.size(3), m = a.value.size(3);
  return n == a.key.size(3) && n > 0 && m > 0 && n % multiple == 0 && m % multiple == 0;
}

AttentionKernel kernel_of_gpu(const AttentionArguments& a) {
  // A mask whose rows are not dense, too, is left to the products.
  if (!has_dense_rows(a) || (a.mask && a.mask->stride(-1) != 1)) return AttentionKernel::kMath;
  if (fits_cudnn(a)) return AttentionKernel::kCudnn;
  if (fits_flash(a)) return AttentionKernel::kFlash;
  return fits_efficient(a) ? AttentionKernel::kEfficient : AttentionKernel::kMath;
}

}  // namespace

AttentionKernel attention_kernel(const AttentionArguments& arguments) {
  return runs_on_gpu(arguments.query) ? kernel_of_gpu(arguments) : kernel_of_cpu(arguments);
}

}  // namespace tessera::ops
