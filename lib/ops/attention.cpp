#include "tessera/ops/attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "lib/core/meta.h"
#include "lib/ops/autograd.h"
#include "lib/ops/counted.h"
#include "lib/ops/packed.h"
#include "lib/ops/random.h"
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
    rotary_(result, cos, sin, positions, back);
    return result;
  }
};

// [batch, 1, sequence, sequence]: the keys a query may see. A query that would see none (blind)
// sees itself, so that no kernel divides by zero; the caller clears it.
at::Tensor visible_keys(const at::Tensor& mask, at::Tensor& blind) {
  const int64_t n = mask.size(1);
  const at::Tensor causal = at::ones({n, n}, mask.options()).tril_();
  blind = mask.cumsum(1).eq(0);
  const at::Tensor self = at::eye(n, mask.options()).logical_and(blind.unsqueeze(2));
  return mask.unsqueeze(1).logical_and(causal).logical_or_(self).unsqueeze(1);
}

// q, k, v [batch, heads, sequence, d]; visible as above or undefined.
at::Tensor attend_with_dropout(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const at::Tensor& visible, const CausalAttentionOptions& options) {
  const int64_t batch = q.size(0), heads = q.size(1), n = q.size(2);
  const at::Tensor seen =
      visible.defined() ? visible : at::ones({n, n}, q.options().dtype(at::kBool)).tril_();
  const auto wide = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor scores = (at::matmul(q, k.transpose(2, 3)) * options.scale).to(wide);
  const at::Tensor probability =
      scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity()).softmax(3);
  const at::Tensor factors = attention_factors(
      {batch, heads, n, n}, wide, {options.dropout, options.seed, options.first_head}, q.device());
  return at::matmul((probability * factors).to(q.scalar_type()), v);
}

// Rows of any lengths in one call of the 16-bit kernel.
bool fits_varlen_kernel(const at::Tensor& q) {
  return runs_on_gpu(q) && (q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16) &&
         q.size(3) % 8 == 0 && q.size(3) <= 256;
}

at::Tensor attend_to_rows(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const CausalAttentionOptions& options, const PackedRows& packed) {
  if (fits_varlen_kernel(q)) {
    std::optional<SeededDevice> seeded;
    if (options.dropout > 0) {
      seeded.emplace(q.device(), mixed_seed(options.seed, options.first_head));
    }
    const at::Tensor& offsets = packed.offsets;
    const int64_t longest = packed.longest();
    const at::Tensor context = std::get<0>(at::_flash_attention_forward(
        q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), offsets, offsets, longest, longest,
        options.dropout, /*is_causal=*/true, /*return_debug_mask=*/false, options.scale));
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

}  // namespace

at::Tensor rotary_frequencies(int64_t head_dim, double theta, double linear_factor,
                              const std::optional<Llama3Scaling>& scaling) {
  check(head_dim > 0 && head_dim % 2 == 0 && theta > 0 && linear_factor > 0,
        ErrorCode::kInvalidArgument, "rotary_frequencies: head dimension ", head_dim, ", theta ",
        theta, ", factor ", linear_factor, "; expected an even dimension and positive numbers.");
  const at::Tensor exponent = at::arange(0, head_dim, 2, at::kFloat) / head_dim;
  at::Tensor frequencies = 1.0 / at::pow(at::Scalar(theta), exponent) / linear_factor;
  if (!scaling) return frequencies;
  const at::Tensor turns = frequencies * (static_cast<double>(scaling->original_positions) /
                                          (2 * std::numbers::pi));  // over the original context
  const double low = scaling->low_frequency_factor, high = scaling->high_frequency_factor;
  const at::Tensor share = ((turns - low) / (high - low)).clamp(0, 1);
  return frequencies * share + frequencies / scaling->factor * (1 - share);
}

RotaryTables rotary_tables(const at::Tensor& frequencies, int64_t positions) {
  const at::Tensor angles = at::outer(at::arange(positions, frequencies.options()), frequencies);
  return {angles.cos(), angles.sin()};
}

at::Tensor rotary(const at::Tensor& x, const RotaryTables& tables, const at::Tensor& positions) {
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
  // Only the 16-bit kernels read a key head for several query heads.
  const bool expand = groups > 1 && (!runs_on_gpu(q) || q.scalar_type() == at::kFloat ||
                                     attention_mask.defined() || options.dropout > 0);
  const auto key_heads = [&](const at::Tensor& x) {
    return (expand ? x.repeat_interleave(groups, 2) : x).transpose(1, 2);
  };
  const at::Tensor query = q.transpose(1, 2), key = key_heads(k), value = key_heads(v);
  at::Tensor blind, visible;
  if (attention_mask.defined()) visible = visible_keys(attention_mask, blind);
  at::Tensor context;
  if (options.dropout > 0 && !runs_on_gpu(q)) {
    context = attend_with_dropout(query, key, value, visible, options);
  } else if (q.is_meta()) {
    context = counted_attention(query, key, value, visible);
  } else {
    std::optional<SeededDevice> seeded;
    if (options.dropout > 0) {
      seeded.emplace(q.device(), mixed_seed(options.seed, options.first_head));
    }
    context = at::scaled_dot_product_attention(
        query, key, value, visible.defined() ? std::optional(visible) : std::nullopt,
        options.dropout, /*is_causal=*/!visible.defined(), options.scale,
        /*enable_gqa=*/groups > 1 && !expand);
  }
  context = context.transpose(1, 2).flatten(2);
  return blind.defined() ? context.masked_fill(blind.unsqueeze(2), 0.0) : context;
}

}  // namespace tessera::ops
