// SPDX-License-Identifier: MIT
#include "lib/ops/piece_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <optional>
#include <utility>

#include "lib/core/kept_tensors.h"
#include "lib/ops/attention_kernel.h"
#include "lib/ops/autograd.h"
#include "lib/ops/counted.h"
#include "lib/ops/flash_spans.h"
#include "lib/ops/saved_value.h"
#include "lib/ops/score_attention.h"
#include "lib/ops/sinks.h"
#include "lib/ops/two_part_spans.h"
#include "lib/ops/wide.h"

namespace tessera::ops {
namespace {

// Columns of the span's queries and keys, from its first key on.
struct Columns {
  at::Tensor query;  // [queries, 1]
  at::Tensor key;    // [keys]
};

Columns columns_of(const RowSpan& span, const at::TensorOptions& options) {
  return {at::arange(span.keys - span.queries, span.keys, options).unsqueeze(1),
          at::arange(span.keys, options)};
}

at::Tensor of_sequences(const at::Tensor& x, const RowSpan& span) {
  return x.narrow(0, span.first_sequence, span.sequences);
}

at::Tensor queries_of(const at::Tensor& x, const RowSpan& span) {
  return of_sequences(x, span).narrow(1, span.first_query, span.queries);
}

at::Tensor keys_of(const at::Tensor& x, const RowSpan& span) {
  return of_sequences(x, span).narrow(1, span.first_key, span.keys);
}

// bool [sequences or 1, 1, queries, keys]
at::Tensor visible(const PieceAttention& attention, const RowSpan& span, const at::Tensor& like) {
  const auto [query, key] = columns_of(span, like.options().dtype(at::kLong));
  at::Tensor seen = key.le(query);
  if (attention.window > 0) seen = seen.logical_and(key.gt(query - attention.window));
  seen = seen.unsqueeze(0);
  if (attention.attention_mask.defined()) {
    seen = seen.logical_and(keys_of(attention.attention_mask, span).unsqueeze(1));
  }
  return seen.unsqueeze(1);
}

// slope (j - i): [heads, queries, keys]
at::Tensor distances(const PieceAttention& attention, const RowSpan& span,
                     const at::TensorOptions& options) {
  const auto [query, key] = columns_of(span, options);
  return (key - query) * attention.slopes.to(options).view({-1, 1, 1});
}

// Queries, keys and values of a span, as FlashOutput's functions take them -> [sequences, queries,
// heads, d]. Differentiable. sinks: the attention's.
at::Tensor attend_to_span(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const at::Tensor& sinks, const PieceAttention& attention,
                          const RowSpan& span) {
  const int64_t groups = q.size(2) / k.size(2);
  // Distances in 16 bits would be rounded.
  const auto dtype = attention.slopes.defined() ? wide(q) : q.scalar_type();
  const auto of_heads = [&](const at::Tensor& x) {
    const at::Tensor same = x.to(dtype);
    return (groups > 1 ? same.repeat_interleave(groups, 2) : same).transpose(1, 2);
  };
  at::Tensor seen = visible(attention, span, q), blind;
  if (attention.attention_mask.defined()) {
    blind = seen.any(3).logical_not();  // [sequences, 1, queries]
    seen = seen.logical_or(blind.unsqueeze(3));
  }
  at::Tensor mask = seen;
  if (attention.slopes.defined()) {
    mask = distances(attention, span, q.options().dtype(dtype))
               .masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
  }
  const AttentionArguments all{.query = q.to(dtype).transpose(1, 2),
                               .key = of_heads(k),
                               .value = of_heads(v),
                               .mask = mask,
                               .scale = attention.scale};
  at::Tensor context;
  if (sinks.defined()) {
    context = attend_with_sinks(all, sinks);
  } else if (q.is_meta()) {
    context = counted_attention(all);
  } else {
    context = at::scaled_dot_product_attention(all.query, all.key, all.value, all.mask, 0, false,
                                               all.scale);
  }
  context = context.transpose(1, 2);
  if (blind.defined()) context = context.masked_fill(blind.transpose(1, 2).unsqueeze(3), 0.0);
  return context.to(q.scalar_type());
}

bool is_plain(const PieceAttention& attention) {
  return !attention.slopes.defined() && !attention.attention_mask.defined();
}

struct Work {
  PieceAttention attention;
  std::vector<RowSpan> spans;
  enum class Kernel { kScores, kFlash, kTwoParts } kernel = Kernel::kScores;
  std::vector<FlashOutput> kept = {};  // of every span, without output; not of scores

  bool forms_scores() const { return kernel == Kernel::kScores; }
  bool keeps() const { return attention.kept != nullptr && !forms_scores(); }

  // What backward needs of forward, for its repetition.
  void hand_over(const at::Tensor& output) const {
    KeptTensors::Group group{output};
    for (const FlashOutput& made : kept) {
      group.insert(group.end(), {made.log_sum_exp, made.random_state, made.random_offset});
    }
    attention.kept->keep(std::move(group));
  }
  // Returns the output.
  at::Tensor take_over() {
    constexpr size_t kPerSpan = 3;
    const KeptTensors::Group group = attention.kept->take();
    for (size_t i = 1; i + kPerSpan <= group.size(); i += kPerSpan) {
      kept.push_back({{}, group[i], group[i + 1], group[i + 2]});
    }
    return group[0];
  }
};

class Attend : public Function<Attend> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& kv,
                            const std::optional<at::Tensor>& sinks, Work work) {
    const bool takes = work.keeps() && work.attention.is_again;
    const at::Tensor output = takes ? work.take_over() : at::empty(q.sizes(), q.options());
    if (!takes) attend(output, q, kv, work);
    if (work.keeps() && !takes) work.hand_over(output);
    context->save_for_backward(
        {q, kv, work.forms_scores() ? at::Tensor() : output, sinks.value_or(at::Tensor())});
    work.attention.sinks.reset();  // saved above
    save_value(context, "work", std::move(work));
    return output;
  }

  static void attend(const at::Tensor& output, const at::Tensor& q, const at::Tensor& kv,
                     Work& work) {
    for (const RowSpan& span : work.spans) {
      const auto [queries, keys, values] = parts_of(q, kv, span);
      const at::Tensor to = queries_of(output, span);
      if (!work.forms_scores()) {
        const double scale = work.attention.scale;
        FlashOutput made =
            work.kernel == Work::Kernel::kTwoParts
                ? two_part_forward(queries, keys, values, span, scale)
                : flash_forward(queries, keys, values, span, scale, work.attention.window);
        if (work.attention.sinks.defined()) add_sinks_(made, work.attention.sinks);
        to.copy_(std::exchange(made.output, {}));
        work.kept.push_back(std::move(made));
      } else {
        to.copy_(attend_to_span(queries, keys, values, work.attention.sinks, work.attention, span));
      }
    }
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Work& work = saved_value<Work>(context, "work");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &kv = saved[1], &sinks = saved[3];
    const at::Tensor dq = at::empty(q.sizes(), q.options());
    // Sums of many chunks in 16 bits would lose digits.
    const at::Tensor dkv = at::zeros(
        kv.sizes(), kv.options().dtype(work.forms_scores() ? wide(kv) : kv.scalar_type()));
    at::Tensor dsinks;
    if (sinks.defined()) dsinks = at::zeros(sinks.sizes(), sinks.options().dtype(wide(sinks)));
    for (size_t i = 0; i < work.spans.size(); ++i) {
      const RowSpan& span = work.spans[i];
      const Parts given = parts_of(q, kv, span), to = parts_of(dq, dkv, span);
      const at::Tensor gradient = queries_of(gradients[0], span);
      const FlashGradients made =
          work.forms_scores()
              ? by_repetition(given, sinks, gradient, work, span, dsinks)
              : by_kernel(given, sinks, gradient, queries_of(saved[2], span), work, i, dsinks);
      to.q.copy_(made.q);
      to.k.add_(made.k);
      to.v.add_(made.v);
    }
    if (dsinks.defined()) dsinks = dsinks.to(sinks.scalar_type());
    return {dq, dkv.to(kv.scalar_type()), dsinks, {}};
  }

 private:
  struct Parts {
    at::Tensor q, k, v;
  };

  static Parts parts_of(const at::Tensor& q, const at::Tensor& kv, const RowSpan& span) {
    const at::Tensor keys = keys_of(kv, span);
    const int64_t heads = kv.size(2) / 2;
    return {queries_of(q, span), keys.narrow(2, 0, heads), keys.narrow(2, heads, heads)};
  }

  static FlashGradients by_kernel(const Parts& given, const at::Tensor& sinks,
                                  const at::Tensor& gradient, const at::Tensor& output,
                                  const Work& work, size_t i, const at::Tensor& dsinks) {
    FlashOutput forward = work.kept[i];
    forward.output = output;
    if (sinks.defined()) dsinks.add_(gradient_of_sinks(gradient, forward, sinks));
    if (work.kernel == Work::Kernel::kTwoParts) {
      return two_part_backward(gradient, given.q, given.k, given.v, forward, work.spans[i],
                               work.attention.scale);
    }
    return flash_backward(gradient, given.q, given.k, given.v, forward, work.spans[i],
                          work.attention.scale, work.attention.window);
  }

  // Forms the span's scores again.
  static FlashGradients by_repetition(const Parts& given, const at::Tensor& sinks,
                                      const at::Tensor& gradient, const Work& work,
                                      const RowSpan& span, const at::Tensor& dsinks) {
    const at::AutoGradMode with_gradients(true);
    variable_list inputs;
    for (const at::Tensor* x : {&given.q, &given.k, &given.v, &sinks}) {
      if (x->defined()) inputs.push_back(x->detach().requires_grad_());
    }
    const at::Tensor output =
        attend_to_span(inputs[0], inputs[1], inputs[2], sinks.defined() ? inputs[3] : at::Tensor(),
                       work.attention, span);
    const variable_list made = torch::autograd::grad({output}, inputs, {gradient});
    if (sinks.defined()) dsinks.add_(made[3]);
    return {made[0], made[1], made[2]};
  }
};

}  // namespace

bool piece_kernels_take(const at::Tensor& q, const PieceAttention& attention) {
  return is_plain(attention) && takes_flash(q);
}

at::Tensor piece_attention(const at::Tensor& q, const at::Tensor& keys_values,
                           const std::vector<RowPiece>& pieces, const PieceAttention& attention) {
  Work work{.attention = attention, .spans = {}};
  if (q.size(0) > 0 && is_plain(attention)) {
    work.spans = spans_of(pieces, q.size(0), attention.packed);
    const bool squares = attention.window == 0 && !attention.packed.defined();
    if (squares && (attention.in_two_parts || takes_two_parts(q, keys_values, work.spans))) {
      work.kernel = Work::Kernel::kTwoParts;
    } else if (takes_flash(q)) {
      work.kernel = Work::Kernel::kFlash;
    }
  }
  if (q.size(0) > 0 && work.forms_scores()) {
    work.spans = chunks_of(pieces, q.size(0), attention.packed, attention.window,
                           attention.most_scores / q.size(2));
  }
  std::optional<at::Tensor> sinks;
  if (attention.sinks.defined()) sinks = attention.sinks;
  return Attend::apply(q, keys_values, sinks, std::move(work)).flatten(2);
}

}  // namespace tessera::ops
