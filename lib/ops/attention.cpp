// SPDX-License-Identifier: MIT
#include "tessera/ops/attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "lib/core/meta.h"
#include "lib/ops/autograd.h"
#include "lib/ops/counted.h"
#include "lib/ops/packed.h"
#include "lib/ops/random.h"
#include "lib/ops/score_attention.h"
#include "tessera/core/error.h"
#include "tessera/ops/kernels.h"

namespace tessera::ops {
namespace {

class Rotary : public Function<Rotary> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin, const std::optional<at::Tensor>& positions) {
    const at::Tensor places = positions.value_or(at::Tensor());
    context->save_for_backward({cos, sin, places});
    return turned(x, cos, sin, places, /*back=*/false);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    return {turned(gradients[0], saved[0], saved[1], saved[2], /*back=*/true), {}, {}, {}};
  }

 private:
  static at::Tensor turned(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                           const at::Tensor& positions, bool back) {
    const at::Tensor result = x.clone(at::MemoryFormat::Contiguous);
    rotary_(result.narrow(3, 0, 2 * cos.size(1)), cos, sin, positions, back);
    return result;
  }
};

// bool [queries, keys]: the causal (and window) mask of a piece.
at::Tensor in_reach(const Piece& piece, int64_t window, at::Device device) {
  const at::Tensor all = at::ones({piece.queries, piece.keys}, at::device(device).dtype(at::kBool));
  const int64_t own = piece.first_query - piece.first_key;
  const at::Tensor causal = all.tril(own);
  return window > 0 ? causal.triu(own - window + 1) : causal;
}

// bool [batch, 1, queries, keys]: visible keys. A query without any visible key sees itself, so
// that no kernel divides by zero. blind [batch, queries] marks these queries, whose output the
// caller clears.
at::Tensor visible_keys(const at::Tensor& mask, const Piece& piece, int64_t window,
                        at::Tensor& blind) {
  const at::Tensor reach = in_reach(piece, window, mask.device());
  const at::Tensor seen =
      mask.narrow(1, piece.first_key, piece.keys).unsqueeze(1).logical_and(reach);
  blind = seen.any(2).logical_not();
  const at::Tensor self = at::zeros_like(reach);
  self.diagonal(piece.first_query - piece.first_key).fill_(true);
  return seen.logical_or(self.logical_and(blind.unsqueeze(2))).unsqueeze(1);
}

// True for inputs of the 16-bit kernel for rows of any lengths.
bool fits_varlen_kernel(const at::Tensor& q) {
  return runs_on_gpu(q) && (q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16) &&
         q.size(3) % 8 == 0 && q.size(3) <= 256;
}

at::Tensor attend_to_rows(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const CausalAttentionOptions& options, const PackedRows& packed) {
  if (fits_varlen_kernel(q) && !forms_scores(options)) {
    std::optional<SeededDevice> seeded;
    if (options.dropout > 0) {
      seeded.emplace(q.device(), mixed_seed(options.seed, options.first_head));
    }
    const at::Tensor& offsets = packed.offsets;
    const int64_t longest = packed.longest();
    const at::Tensor context = std::get<0>(at::_flash_attention_forward(
        q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), offsets, offsets, longest, longest,
        options.dropout, /*is_causal=*/true, /*return_debug_mask=*/false, options.scale,
        options.window > 0 ? std::optional(options.window - 1) : std::nullopt));
    return context.view({q.size(0), q.size(1), -1});
  }
  const auto queries = each_row(q, packed), keys = each_row(k, packed),
             values = each_row(v, packed);
  std::vector<at::Tensor> contexts;
  CausalAttentionOptions of_row = options;
  for (size_t i = 0; i < queries.size(); ++i) {
    of_row.seed = mixed_seed(options.seed, i);
    contexts.push_back(causal_attention(queries[i], keys[i], values[i], {}, of_row));
  }
  return at::cat(contexts, 1).view({q.size(0), q.size(1), -1});
}

// Share of each frequency that stays unscaled: [d/2].
at::Tensor kept_by_turns(const at::Tensor& frequencies, const RotaryOptions& options) {
  const at::Tensor rotations =
      frequencies * (static_cast<double>(options.original_positions) / (2 * std::numbers::pi));
  const double low = options.low_frequency_factor, high = options.high_frequency_factor;
  return ((rotations - low) / (high - low)).clamp(0, 1);
}

at::Tensor kept_by_place(int64_t head_dim, const RotaryOptions& options) {
  const auto d = static_cast<double>(head_dim);
  const auto place_of =
      [&](double rotations) {  // index of the frequency with this number of rotations
        const auto original = static_cast<double>(options.original_positions);
        return d * std::log(original / (rotations * 2 * std::numbers::pi)) /
               (2 * std::log(options.theta));
      };
  double first = place_of(options.beta_fast), last = place_of(options.beta_slow);
  if (options.whole_bounds) first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0), last = std::min(last, d - 1);
  if (first == last) last += 0.001;
  const at::Tensor place = at::arange(head_dim / 2, at::kFloat);
  return 1 - ((place - first) / (last - first)).clamp(0, 1);
}

// Pieces of a sequence of length n that compute few scores outside their windows.
std::vector<Piece> pieces_of(int64_t n, int64_t window) {
  if (window == 0 || window >= n) return {{0, n, 0, n}};
  const int64_t queries = std::clamp<int64_t>(window, 32, 512);
  std::vector<Piece> pieces;
  for (int64_t first = 0; first < n; first += queries) {
    const int64_t end = std::min(first + queries, n);
    const int64_t first_key = std::max<int64_t>(first - window + 1, 0);
    pieces.push_back({first, end - first, first_key, end - first_key});
  }
  return pieces;
}

}  // namespace

at::Tensor rotary_frequencies(int64_t head_dim, const RotaryOptions& options) {
  using Kind = RotaryOptions::Kind;
  check(head_dim > 0 && head_dim % 2 == 0 && options.theta > 0 && options.factor > 0,
        ErrorCode::kInvalidArgument, "rotary_frequencies: head dimension ", head_dim, ", theta ",
        options.theta, ", factor ", options.factor,
        "; expected an even dimension and positive numbers.");
  const at::Tensor exponent = at::arange(0, head_dim, 2, at::kFloat) / head_dim;
  const at::Tensor plain = 1.0 / at::pow(at::Scalar(options.theta), exponent);
  if (options.kind == Kind::kDefault) return plain;
  const at::Tensor divided = plain / options.factor;
  if (options.kind == Kind::kLinear) return divided;
  const at::Tensor kept = options.kind == Kind::kLlama3 ? kept_by_turns(plain, options)
                                                        : kept_by_place(head_dim, options);
  return plain * kept + divided * (1 - kept);
}

RotaryTables rotary_tables(const at::Tensor& frequencies, int64_t positions, double magnitude) {
  const at::Tensor angles = at::outer(at::arange(positions, frequencies.options()), frequencies);
  if (magnitude == 1) return {angles.cos(), angles.sin()};
  return {angles.cos() * magnitude, angles.sin() * magnitude};
}

at::Tensor rotary(const at::Tensor& x, const RotaryTables& tables, const at::Tensor& positions) {
  check(x.dim() == 4 && 2 * tables.cos.size(1) <= x.size(3), ErrorCode::kInvalidArgument,
        "rotary: x has shape ", x.sizes(), ", the tables ", tables.cos.sizes(),
        "; expected [batch, sequence, heads, d] and [positions, r/2] of r <= d columns.");
  return Rotary::apply(x, tables.cos, tables.sin, std::optional(positions));
}

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& attention_mask, const CausalAttentionOptions& options,
                            const PackedRows& packed) {
  check(q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes() && q.size(0) == k.size(0) &&
            q.size(1) == k.size(1) && q.size(3) == k.size(3) && q.size(2) % k.size(2) == 0,
        ErrorCode::kInvalidArgument, "causal_attention: q has shape ", q.sizes(), ", k ", k.sizes(),
        ", v ", v.sizes(), "; the number of query heads must be a multiple of the key heads'.");
  check(!attention_mask.defined() || attention_mask.sizes() == q.sizes().slice(0, 2),
        ErrorCode::kInvalidArgument, "causal_attention: the mask must have the shape ",
        q.sizes().slice(0, 2), " of [batch, sequence].");
  check_packed(packed, q, attention_mask);
  if (packed.defined()) return attend_to_rows(q, k, v, options, packed);
  const int64_t groups = q.size(2) / k.size(2);
  // Only the 16-bit kernels share a key head among several query heads.
  const bool expand =
      groups > 1 && (!runs_on_gpu(q) || q.scalar_type() == at::kFloat || options.window > 0 ||
                     attention_mask.defined() || options.dropout > 0 || forms_scores(options));
  const auto key_heads = [&](const at::Tensor& x) {
    return (expand ? x.repeat_interleave(groups, 2) : x).transpose(1, 2);
  };
  const at::Tensor query = q.transpose(1, 2), key = key_heads(k), value = key_heads(v);
  const int64_t n = q.size(1);
  std::optional<SeededDevice> seeded;
  const bool by_scores = forms_scores(options) || (options.dropout > 0 && !runs_on_gpu(q));
  if (options.dropout > 0 && !by_scores && !q.is_meta()) {
    seeded.emplace(q.device(), mixed_seed(options.seed, options.first_head));
  }
  const auto attend = [&](const Piece& piece, const at::Tensor& visible) {
    const at::Tensor queries = query.narrow(2, piece.first_query, piece.queries);
    const at::Tensor keys = key.narrow(2, piece.first_key, piece.keys),
                     values = value.narrow(2, piece.first_key, piece.keys);
    if (by_scores) {
      const at::Tensor seen =
          visible.defined() ? visible : in_reach(piece, options.window, q.device());
      return attend_by_scores(queries, keys, values, seen, piece, n, options);
    }
    const AttentionArguments all{.query = queries,
                                 .key = keys,
                                 .value = values,
                                 .mask = visible.defined() ? std::optional(visible) : std::nullopt,
                                 .dropout = options.dropout,
                                 .is_causal = !visible.defined(),
                                 .scale = options.scale,
                                 .shares_heads = groups > 1 && !expand};
    if (q.is_meta()) return counted_attention(all);
    return at::scaled_dot_product_attention(queries, keys, values, all.mask, all.dropout,
                                            all.is_causal, all.scale, all.shares_heads);
  };
  std::vector<at::Tensor> contexts;
  const std::vector<Piece> pieces = pieces_of(n, options.window);
  for (const Piece& piece : pieces) {
    at::Tensor blind, visible;
    if (attention_mask.defined()) {
      visible = visible_keys(attention_mask, piece, options.window, blind);
    } else if (options.window > 0 && options.window < n) {
      visible = in_reach(piece, options.window, q.device());
    }
    const at::Tensor context = attend(piece, visible).transpose(1, 2).flatten(2);
    contexts.push_back(blind.defined() ? context.masked_fill(blind.unsqueeze(2), 0.0) : context);
  }
  return contexts.size() == 1 ? contexts.front() : at::cat(contexts, 1);
}

}  // namespace tessera::ops
