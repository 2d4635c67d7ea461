// SPDX-License-Identifier: MIT
// at::scaled_dot_product_attention on meta tensors.
#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>

#include "lib/core/meta.h"
#include "lib/core/operation_range.h"
#include "lib/ops/autograd.h"
#include "lib/ops/counted.h"
#include "lib/ops/counted_attention.h"

namespace tessera::ops {
namespace {

using counted::cudnn_workspace;
using counted::empty_fp32;
using counted::flash_sums;
using counted::is_16_bit;

int64_t parts(int64_t n, int64_t size) { return (n + size - 1) / size; }
int64_t rounded(int64_t n, int64_t multiple) { return parts(n, multiple) * multiple; }

// [batch, heads, sequence, n] of x's first three extents, laid out by token.
at::Tensor empty_by_token(const at::Tensor& x, int64_t n) {
  return at::empty({x.size(0), x.size(2), x.size(1), n}, x.options()).transpose(1, 2);
}

// Laid out in the order of x's extents in memory.
at::Tensor empty_like_query(const at::Tensor& x, int64_t n) {
  return x.size(3) == n ? at::empty_like(x) : empty_by_token(x, n);
}

double scores_of(const at::Tensor& q, const at::Tensor& k, bool is_causal) {
  const auto pairs = static_cast<double>(q.size(0) * q.size(1)) * static_cast<double>(q.size(2)) *
                     static_cast<double>(k.size(2));
  return is_causal ? pairs / 2 : pairs;
}

// Tiles of the CPU's kernel for every thread: so many of scores in fp32, again in the input's dtype
// for 16 bits, and columns of fp32 numbers.
variable_list tiles_of(const at::Tensor& q, const at::Tensor& k, int64_t scores, int64_t columns) {
  const int64_t queries = q.size(2) >= 768 ? 256 : q.size(2) >= 192 ? 64 : 32;
  const int64_t rows = std::min(queries, q.size(2)), keys = std::min<int64_t>(512, k.size(2));
  const int64_t threads = at::get_num_threads();
  const auto wide = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  variable_list tiles{
      at::empty({threads, rows * (scores * keys + columns)}, q.options().dtype(wide))};
  if (is_16_bit(q)) tiles.push_back(at::empty({threads, scores, rows, keys}, q.options()));
  return tiles;
}

// Into how many parts the flash kernel cuts the keys, where the queries alone fill too few
// multiprocessors. Source: num_splits_heuristic() of LibTorch's flash_attn/flash_api.cpp.
int64_t key_splits(const at::Tensor& q, const at::Tensor& k) {
  constexpr int64_t kQueryTile = 64, kMost = 128, kPlaces = 2 * kCountedMultiprocessors;
  constexpr double kFull = 0.8, kGoodShare = 0.85;
  const int64_t d = q.size(3), key_tile = d <= 64 ? 256 : d <= 128 ? 128 : 64;
  const int64_t key_tiles = parts(k.size(2), key_tile);
  const int64_t blocks = q.size(0) * q.size(1) * parts(q.size(2), kQueryTile);
  if (static_cast<double>(blocks) >= kFull * static_cast<double>(kPlaces)) return 1;
  const auto efficiency = [&](int64_t splits) {
    const bool is_new = splits == 1 || parts(key_tiles, splits) != parts(key_tiles, splits - 1);
    const int64_t places = rounded(blocks * splits, kPlaces);
    return is_new ? static_cast<double>(blocks * splits) / static_cast<double>(places) : 0.0;
  };
  const int64_t most = std::min(kMost, key_tiles);
  double best = 0;
  for (int64_t splits = 1; splits <= most; ++splits) best = std::max(best, efficiency(splits));
  for (int64_t splits = 1; splits <= most; ++splits) {
    if (efficiency(splits) >= kGoodShare * best) return splits;
  }
  return 1;
}

// Outputs of each part of the keys and their logarithms of sums.
variable_list split_outputs(const at::Tensor& q, const at::Tensor& k) {
  constexpr int64_t kColumns = 32;
  const int64_t splits = key_splits(q, k);
  if (splits == 1) return {};
  const int64_t lines = splits * q.size(0) * q.size(1) * q.size(2);
  return {empty_fp32({lines}, q), empty_fp32({lines, rounded(q.size(3), kColumns)}, q)};
}

// The kernels' tensors. Kept for backward are query, key, value, output, mask and one number of
// each query, the logarithm of its sum.
class CountedAttention : public Function<CountedAttention> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const std::optional<at::Tensor>& mask,
                            bool is_causal, bool drops, int64_t kernel_number) {
    const auto kernel = static_cast<AttentionKernel>(kernel_number);
    const OperationRange range("scaled_dot_product_attention", [&] {
      return OperationWork{.flops = 2 * scores_of(q, k, is_causal) *
                                    static_cast<double>(q.size(3) + v.size(3))};
    });
    const bool by_token = kernel == AttentionKernel::kEfficient || !runs_on_gpu(q);
    const at::Tensor output =
        by_token ? empty_by_token(q, v.size(3)) : empty_like_query(q, v.size(3));
    const int64_t lines =
        kernel == AttentionKernel::kEfficient ? rounded(q.size(2), 32) : q.size(2);
    const auto wide = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor log_sums = at::empty({q.size(0), q.size(1), lines}, q.options().dtype(wide));
    variable_list work;
    if (!runs_on_gpu(q)) {
      work = tiles_of(q, k, /*scores=*/1, /*columns=*/q.size(3) + 2);
    } else if (kernel == AttentionKernel::kEfficient && is_16_bit(q) && v.size(3) > kWide) {
      work.push_back(empty_fp32(output.sizes(), q));
    } else if (kernel == AttentionKernel::kFlash && !drops) {
      work = split_outputs(q, k);
    }
    context->save_for_backward({q, k, v, output, log_sums, mask.value_or(at::Tensor())});
    context->saved_data["causal"] = is_causal;
    context->saved_data["kernel"] = kernel_number;
    context->saved_data["mask"] = mask && mask->requires_grad();
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list given) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    const auto kernel = static_cast<AttentionKernel>(context->saved_data["kernel"].toInt());
    const bool is_causal = context->saved_data["causal"].toBool();
    const OperationRange range("scaled_dot_product_attention_backward", [&] {
      return OperationWork{.flops = 2 * scores_of(q, k, is_causal) *
                                    static_cast<double>(3 * q.size(3) + 2 * v.size(3))};
    });
    variable_list gradients;
    for (const at::Tensor* x : {&q, &k, &v}) {
      const bool by_token = kernel == AttentionKernel::kEfficient || !runs_on_gpu(q);
      gradients.push_back(by_token ? empty_by_token(*x, x->size(3)) : at::empty_like(*x));
    }
    at::Tensor of_mask;
    if (context->saved_data["mask"].toBool()) {
      constexpr int64_t kAlignment = 16;
      of_mask = at::empty({q.size(0), q.size(1), q.size(2), rounded(k.size(2), kAlignment)},
                          saved[5].options());
    }
    if (runs_on_gpu(q)) {
      take_workspace(kernel, {.q = q, .k = k, .v = v, .output = saved[3], .gradient = given[0]});
    } else {
      tiles_of(q, k, /*scores=*/2, /*columns=*/1);
    }
    if (of_mask.defined()) of_mask = of_mask.narrow(3, 0, k.size(2));
    gradients.insert(gradients.end(), {of_mask, {}, {}, {}});
    return gradients;
  }

 private:
  static constexpr int64_t kWide = 128;  // columns of a head that registers hold

  struct Backward {
    const at::Tensor &q, &k, &v, &output, &gradient;
  };

  // What a GPU's kernel holds while it runs.
  static void take_workspace(AttentionKernel kernel, const Backward& x) {
    const int64_t batch = x.q.size(0), heads = x.q.size(1), d = x.q.size(3);
    const int64_t queries = x.q.size(2), keys = x.k.size(2);
    const bool shares = heads > x.k.size(1);
    variable_list work;
    if (kernel == AttentionKernel::kCudnn) {
      work = cudnn_workspace(batch * heads * queries, batch * heads * keys, d, shares, x.q);
    } else if (kernel == AttentionKernel::kFlash) {
      for (const at::Tensor* each : {&x.gradient, &x.output}) {
        work.push_back(each->transpose(1, 2).contiguous());
      }
      work.push_back(flash_sums(batch, queries, 0, heads, d, x.q));
      if (shares) {  // of each query head, before their sum
        work.push_back(at::empty({2, batch, keys, heads, d}, x.q.options()));
      }
    } else {
      // Tiles of the queries' gradient with a lock each, and a number of each query.
      constexpr int64_t kTile = 64, kLock = 4;
      const int64_t tiles = batch * heads * parts(queries, kTile) * parts(d, kTile);
      work.push_back(empty_fp32({tiles, kLock + kTile * kTile}, x.q));
      work.push_back(empty_fp32({batch, heads, queries}, x.q));
      if (is_16_bit(x.q) && d > kWide) {
        work.push_back(empty_fp32({batch, heads, keys, d + x.v.size(3)}, x.q));
      }
    }
  }
};

// The additive mask of a Boolean one, as LibTorch makes it.
std::optional<at::Tensor> additive(const std::optional<at::Tensor>& mask, at::ScalarType dtype) {
  if (!mask || mask->scalar_type() != at::kBool) return mask;
  return at::where(mask->logical_not(), -std::numeric_limits<double>::infinity(),
                   at::scalar_tensor(0.0, mask->options().dtype(dtype)));
}

// Of all scores, with rows whose length is a multiple of 16, for the efficient kernel.
at::Tensor aligned(const at::Tensor& mask, const AttentionArguments& a) {
  constexpr int64_t kMultiple = 16;
  const int64_t keys = mask.size(-1), spare = rounded(keys, kMultiple) - keys;
  const at::Tensor filled =
      spare == 0 ? mask : at::constant_pad_nd(mask, {0, spare}).narrow(-1, 0, keys);
  return filled.expand({a.query.size(0), a.query.size(1), a.query.size(2), a.key.size(2)});
}

at::Tensor padded(const at::Tensor& x, int64_t spare) {
  return spare == 0 ? x : at::constant_pad_nd(x, {0, spare});
}

}  // namespace

at::Tensor counted_attention(const AttentionArguments& a) {
  const AttentionKernel kernel = attention_kernel(a);
  std::optional<at::Tensor> mask = additive(a.mask, a.query.scalar_type());
  if (kernel == AttentionKernel::kMath) {
    return std::get<0>(at::_scaled_dot_product_attention_math(
        a.query, a.key, a.value, mask, a.dropout, a.is_causal, {}, a.scale, a.shares_heads));
  }
  const bool on_gpu = runs_on_gpu(a.query);
  if (mask && kernel == AttentionKernel::kEfficient) mask = aligned(*mask, a);
  const int64_t d = a.query.size(3);
  const int64_t spare = on_gpu && kernel == AttentionKernel::kFlash ? rounded(d, 8) - d : 0;
  const at::Tensor output =
      CountedAttention::apply(padded(a.query, spare), padded(a.key, spare), padded(a.value, spare),
                              mask, a.is_causal, a.dropout > 0, static_cast<int64_t>(kernel));
  return spare == 0 ? output : output.narrow(3, 0, d);
}

}  // namespace tessera::ops
