#include "lib/ops/counted.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "lib/ops/packed.h"
#include "tessera/core/meta.h"

namespace tessera::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

at::Tensor empty_fp32(at::IntArrayRef shape, const at::Tensor& like) {
  return at::empty(shape, like.options().dtype(at::kFloat));
}

// [batch, heads, sequence, d], laid out as [batch, sequence, heads, d].
at::Tensor empty_by_token(const at::Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options())
      .transpose(1, 2);
}

// What LibTorch's flash backward on CUDA sums the queries' gradient in: whole tiles of each
// sequence, or one more tile for each packed row.
at::Tensor flash_sums(int64_t batch, int64_t sequence, size_t packed_rows, int64_t heads,
                      int64_t head_size, const at::Tensor& like) {
  constexpr int64_t kTile = 128, kColumns = 32;
  const int64_t whole = (sequence + kTile - 1) / kTile * kTile;
  const int64_t rows = packed_rows > 0
                           ? batch * sequence + static_cast<int64_t>(packed_rows) * kTile
                           : batch * whole;
  const int64_t d = (head_size + kColumns - 1) / kColumns * kColumns;
  return empty_fp32({rows, heads, d + 1}, like);
}

// What cuDNN's backward takes for so many rows of all heads: the queries' gradient in fp32 and a
// number a row; where heads share a key head, the gradients of keys and values for each head too.
variable_list cudnn_workspace(int64_t rows, int64_t d, bool grouped, const at::Tensor& like) {
  variable_list work{empty_fp32({rows, d + 1}, like)};
  if (grouped) work.push_back(at::empty({2, rows, d}, like.options()));
  return work;
}

// LibTorch's kernels: the CPU's has tiles of scores for every thread; on GPUs they are cuDNN's in
// 16 bits, and in fp32 sum the queries' gradient. A mask becomes what is added to the scores.
class CountedAttention : public Function<CountedAttention> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const std::optional<at::Tensor>& mask) {
    const at::Tensor added = mask ? at::empty(mask->sizes(), q.options()) : at::Tensor();
    const at::Tensor output = empty_by_token(q);
    const at::Tensor log_sum_exp = empty_fp32({q.size(0), q.size(1), q.size(2)}, q);
    const auto tiles = tiles_of(q, k, /*scores=*/1, /*columns=*/q.size(3) + 2);
    context->save_for_backward({q, k, v, output, log_sum_exp, added});
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    const at::Tensor dq = empty_by_token(q), dk = empty_by_token(k), dv = empty_by_token(v);
    const int64_t rows = q.size(0) * q.size(1) * q.size(2), d = q.size(3);
    const variable_list work =
        !runs_on_gpu(q) ? tiles_of(q, k, /*scores=*/2, /*columns=*/1)
        : q.element_size() == 2
            ? cudnn_workspace(rows, d, q.size(1) > k.size(1), q)
            : variable_list{flash_sums(q.size(0), q.size(2), 0, q.size(1), d, q)};
    return {dq, dk, dv, {}};
  }

 private:
  // So many tiles of scores, in fp32 and, for 16 bits, once more in these, and columns of numbers.
  static variable_list tiles_of(const at::Tensor& q, const at::Tensor& k, int64_t scores,
                                int64_t columns) {
    if (runs_on_gpu(q)) return {};
    const int64_t queries = q.size(2) >= 768 ? 256 : q.size(2) >= 192 ? 64 : 32;
    const int64_t rows = std::min(queries, q.size(2)), keys = std::min<int64_t>(512, k.size(2));
    const int64_t threads = at::get_num_threads();
    variable_list tiles{empty_fp32({threads, rows * (scores * keys + columns)}, q)};
    if (q.element_size() == 2) {
      tiles.push_back(at::empty({threads, scores, rows, keys}, q.options()));
    }
    return tiles;
  }
};

}  // namespace

at::Tensor counted_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& mask) {
  return CountedAttention::apply(q, k, v, mask.defined() ? std::optional(mask) : std::nullopt);
}

namespace counted {
namespace {

bool is_16_bit(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}

int64_t row_count(const at::Tensor& x) { return x.numel() / x.size(-1); }

// The kernels' conditions, see lib/ops/cuda.
bool can_multiply(const at::Tensor& x, const at::Tensor& weight) {
  return is_16_bit(x) && x.scalar_type() == weight.scalar_type() && x.size(-1) % 8 == 0 &&
         weight.size(0) % 8 == 0;
}

constexpr int64_t kColumnParts = 32, kGeluParts = 48;
at::Tensor partial_columns(const at::Tensor& x, int64_t parts = kColumnParts) {
  return empty_fp32({parts, x.size(-1)}, x);
}

bool norm_fits(const at::Tensor& x) {
  constexpr int64_t kMostColumns = 4096;
  return is_16_bit(x) && x.size(-1) % 8 == 0 && x.size(-1) <= kMostColumns;
}

int64_t head_size(const at::Tensor& qkv, const SelfAttention& attention) {
  return qkv.size(2) / (attention.heads + 2 * attention.key_heads);
}

bool attention_fits(const at::Tensor& qkv, const SelfAttention& attention, const at::Tensor& mask) {
  const int64_t d = head_size(qkv, attention);
  if (!is_16_bit(qkv) || mask.defined() || d % 8 != 0) return false;
  if (attention.dropout.on()) return !attention.slopes.defined() && d <= 256;
  return d <= 128 && qkv.size(1) > 1;
}

at::Tensor norm_backward(const at::Tensor& x, const LayerNormGradients& gradients, ColumnSums& sums,
                         at::Tensor* output) {
  // A block on each multiprocessor, or fewer of one row a group.
  const int64_t n = x.size(-1), threads = (n / 8 + 31) / 32 * 32;
  const int64_t groups = std::min<int64_t>(8, 512 / threads);
  if (output) *output = at::empty_like(x);
  const int64_t parts = std::min(kCountedMultiprocessors, (row_count(x) + groups - 1) / groups);
  const at::Tensor columns = empty_fp32({parts, 3 * n}, x).narrow(1, 0, n);
  for (const at::Tensor& sink : {gradients.weight, gradients.bias, gradients.column_sum}) {
    if (sink.defined()) sums.items.push_back({columns, sink});
  }
  if (gradients.columns) *gradients.columns = columns;
  return at::empty_like(x);
}

}  // namespace

void add_column_sums(ColumnSums& sums) { sums.items.clear(); }

at::Tensor linear_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const at::Tensor& residual, const at::Tensor& result) {
  if (!can_multiply(x, weight)) return reference::linear_forward(x, weight, bias, residual, result);
  if (result.defined()) return result;
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  return at::empty(shape, x.options());
}

void linear_backward_input_out(const at::Tensor& gradient, const at::Tensor& weight,
                               const at::Tensor& result) {
  if (!is_16_bit(gradient)) reference::linear_backward_input_out(gradient, weight, result);
}

void linear_backward_weight(const at::Tensor& gradient, const at::Tensor& x,
                            const at::Tensor& weight_gradient, bool add) {
  const bool takes = weight_gradient.scalar_type() == x.scalar_type() ||
                     weight_gradient.scalar_type() == at::kFloat;
  if (is_16_bit(x) && takes && x.size(-1) % 8 == 0) return;
  reference::linear_backward_weight(gradient, x, weight_gradient, add);
}

void linear_backward_bias(const at::Tensor& gradient, const at::Tensor& bias_gradient,
                          ColumnSums& sums) {
  if (!is_16_bit(gradient) || gradient.size(-1) % 64 != 0) {
    return reference::linear_backward_bias(gradient, bias_gradient, sums);
  }
  sums.items.push_back({partial_columns(gradient), bias_gradient});
}

at::Tensor linear_gelu_forward(const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, at::Tensor* pre_activation) {
  if (!can_multiply(x, weight) || !bias.defined()) {
    return reference::linear_gelu_forward(x, weight, bias, pre_activation);
  }
  const at::Tensor y = linear_forward(x, weight, bias, {}, {});
  if (pre_activation) *pre_activation = at::empty_like(y);
  return y;
}

at::Tensor gelu_tanh_forward(const at::Tensor& x) { return at::empty_like(x); }
at::Tensor gelu_tanh_backward(const at::Tensor& gradient, const at::Tensor&) {
  return at::empty_like(gradient);
}

void gelu_tanh_backward_(const at::Tensor& gradient, const at::Tensor& pre_activation,
                         const at::Tensor& bias_gradient, ColumnSums& sums, at::Tensor* output) {
  if (!is_16_bit(gradient) || gradient.size(-1) % 64 != 0) {
    return reference::gelu_tanh_backward_(gradient, pre_activation, bias_gradient, sums, output);
  }
  if (output) *output = at::empty_like(pre_activation);
  const at::Tensor partial = partial_columns(gradient, kGeluParts);
  if (bias_gradient.defined()) sums.items.push_back({partial, bias_gradient});
}

at::Tensor dropout_add(const at::Tensor& x, const at::Tensor&, const Dropout&) {
  return at::empty_like(x);
}

at::Tensor dropout_backward(const at::Tensor& gradient, const Dropout&,
                            const at::Tensor& bias_gradient, ColumnSums& sums) {
  const at::Tensor result = at::empty_like(gradient);
  if (bias_gradient.defined()) counted::linear_backward_bias(result, bias_gradient, sums);
  return result;
}

at::Tensor swiglu_forward(const at::Tensor& gate_up) {
  if (!is_16_bit(gate_up) || gate_up.size(-1) % 16) return reference::swiglu_forward(gate_up);
  std::vector<int64_t> shape = gate_up.sizes().vec();
  shape.back() /= 2;
  return at::empty(shape, gate_up.options());
}

at::Tensor swiglu_backward_(const at::Tensor& dy, const at::Tensor& gate_up, at::Tensor* output) {
  if (!is_16_bit(dy) || dy.size(-1) % 8) return reference::swiglu_backward_(dy, gate_up, output);
  if (output) *output = dy;
  return at::empty_like(gate_up);
}

LayerNormOutput layer_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                   const at::Tensor& bias, double epsilon,
                                   const at::Tensor& cleared) {
  if (!norm_fits(x)) return reference::layer_norm_forward(x, weight, bias, epsilon, cleared);
  const int64_t rows = row_count(x);
  return {at::empty_like(x), empty_fp32({rows}, x), empty_fp32({rows}, x)};
}

at::Tensor layer_norm_backward(const at::Tensor& gradient, const at::Tensor& x,
                               const at::Tensor& mean, const at::Tensor& rstd,
                               const at::Tensor& weight, const at::Tensor& bias,
                               const at::Tensor& residual_gradient,
                               const LayerNormGradients& gradients, ColumnSums& sums,
                               at::Tensor* output) {
  if (norm_fits(x)) return norm_backward(x, gradients, sums, output);
  return reference::layer_norm_backward(gradient, x, mean, rstd, weight, bias, residual_gradient,
                                        gradients, sums, output);
}

RmsNormOutput rms_norm_forward(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                               const at::Tensor& cleared) {
  if (!norm_fits(x)) return reference::rms_norm_forward(x, weight, epsilon, cleared);
  return {at::empty_like(x), empty_fp32({row_count(x)}, x)};
}

at::Tensor rms_norm_backward(const at::Tensor& gradient, const at::Tensor& x,
                             const at::Tensor& rstd, const at::Tensor& weight,
                             const at::Tensor& residual_gradient,
                             const LayerNormGradients& gradients, ColumnSums& sums,
                             at::Tensor* output) {
  if (norm_fits(x)) return norm_backward(x, gradients, sums, output);
  return reference::rms_norm_backward(gradient, x, rstd, weight, residual_gradient, gradients, sums,
                                      output);
}

void rotary_(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
             const at::Tensor& positions, bool back) {
  if (!is_16_bit(x)) reference::rotary_(x, cos, sin, positions, back);
}

AttentionOutput attention_forward(const at::Tensor& qkv, const SelfAttention& attention,
                                  const at::Tensor& attention_mask, const PackedRows& packed) {
  if (!attention_fits(qkv, attention, attention_mask)) {
    return reference::attention_forward(qkv, attention, attention_mask, packed);
  }
  const int64_t batch = qkv.size(0), sequence = qkv.size(1);
  return {at::empty({batch, sequence, attention.heads * head_size(qkv, attention)}, qkv.options()),
          empty_fp32({batch, attention.heads, sequence}, qkv),
          attention.dropout.on() ? at::empty({2}, qkv.options().dtype(at::kLong)) : at::Tensor()};
}

at::Tensor attention_backward(const at::Tensor& gradient, const at::Tensor& qkv,
                              const SelfAttention& attention, const at::Tensor& attention_mask,
                              const AttentionOutput& forward, const PackedRows& packed) {
  if (!attention_fits(qkv, attention, attention_mask)) {
    return reference::attention_backward(gradient, qkv, attention, attention_mask, forward, packed);
  }
  if (attention.dropout.on()) {
    const at::Tensor parts = at::empty_like(qkv);  // of queries, keys and values alone
    {
      const at::Tensor sums = flash_sums(qkv.size(0), qkv.size(1), packed.lengths.size(),
                                         attention.heads, head_size(qkv, attention), qkv);
      // A key head's queries have gradients of its keys and values each before they are added up.
      const bool apart = attention.key_heads < attention.heads;
      const at::Tensor of_keys = apart ? at::empty_like(forward.output) : at::Tensor(),
                       of_values = apart ? at::empty_like(forward.output) : at::Tensor();
    }
    return at::empty_like(qkv);
  }
  const at::Tensor dqkv = at::empty_like(qkv);
  const auto work =
      cudnn_workspace(qkv.size(0) * qkv.size(1) * attention.heads, head_size(qkv, attention),
                      attention.key_heads < attention.heads, qkv);
  return dqkv;
}

at::Tensor attention_to_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& keys, const at::Tensor& values,
                              const at::Tensor& lengths, double scale, const at::Tensor& slopes) {
  constexpr int64_t kMostHead = 256;
  if (!is_16_bit(keys) || q.size(3) % 8 != 0 || q.size(3) > kMostHead) {
    return reference::attention_to_cache(q, k, v, keys, values, lengths, scale, slopes);
  }
  return at::empty({q.size(0), 1, q.size(2) * q.size(3)}, q.options());
}

bool attends_to_sequences(const at::Tensor& x, const SelfAttention& attention, int64_t d,
                          const at::Tensor& attention_mask, const PackedRows& packed) {
  return is_16_bit(x) && !attention_mask.defined() && !attention.dropout.on() && d % 8 == 0 &&
         d <= 128 && packed.sequence > 1;
}

// Many ids are sorted, with what the sort itself needs.
void embedding_backward(const at::Tensor& gradient, const at::Tensor& ids, const at::Tensor& to) {
  if (!is_16_bit(gradient) || gradient.size(-1) % 8 != 0) {
    return reference::embedding_backward(gradient, ids, to);
  }
  constexpr int64_t kUnsorted = 4096;  // kMostUnsortedRows of cuda/launch.h
  if (ids.numel() > kUnsorted) const at::Tensor sorted = at::empty({5, ids.numel()}, ids.options());
}

at::Tensor logits_forward(const at::Tensor& x, const at::Tensor& weight) {
  if (!is_16_bit(x) || x.size(-1) % 8 != 0) return reference::logits_forward(x, weight);
  const int64_t vocabulary = weight.size(0), stride = (vocabulary + 63) / 64 * 64;
  return at::empty({x.size(0), stride}, x.options()).narrow(1, 0, vocabulary);
}

// Rows of wide pieces: what the kernels take.
bool takes_rows(const at::Tensor& logits) {
  const int64_t bytes = logits.element_size(), row = logits.stride(0) * bytes;
  return row % 16 == 0 && row >= (logits.size(1) * bytes + 15) / 16 * 16;
}

void cross_entropy_(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& scale,
                    const at::Tensor& row_loss) {
  if (!takes_rows(logits)) reference::cross_entropy_(logits, labels, scale, row_loss);
}

void cross_entropy_statistics(const at::Tensor& logits, const at::Tensor& labels,
                              const at::Tensor& statistics) {
  if (!takes_rows(logits)) reference::cross_entropy_statistics(logits, labels, statistics);
}

void cross_entropy_gradient_(const at::Tensor& logits, const at::Tensor& labels,
                             const at::Tensor& statistics, const at::Tensor& scale,
                             const at::Tensor& row_loss) {
  if (takes_rows(logits)) return;
  reference::cross_entropy_gradient_(logits, labels, statistics, scale, row_loss);
}

}  // namespace counted

const CudaOps& counted_cuda_ops() {
  static const CudaOps table{.add_column_sums = counted::add_column_sums,
                             .linear_forward = counted::linear_forward,
                             .linear_backward_input_out = counted::linear_backward_input_out,
                             .linear_backward_weight = counted::linear_backward_weight,
                             .linear_backward_bias = counted::linear_backward_bias,
                             .linear_gelu_forward = counted::linear_gelu_forward,
                             .gelu_tanh_forward = counted::gelu_tanh_forward,
                             .gelu_tanh_backward = counted::gelu_tanh_backward,
                             .gelu_tanh_backward_ = counted::gelu_tanh_backward_,
                             .swiglu_forward = counted::swiglu_forward,
                             .swiglu_backward_ = counted::swiglu_backward_,
                             .layer_norm_forward = counted::layer_norm_forward,
                             .layer_norm_backward = counted::layer_norm_backward,
                             .rms_norm_forward = counted::rms_norm_forward,
                             .rms_norm_backward = counted::rms_norm_backward,
                             .dropout_add = counted::dropout_add,
                             .dropout_backward = counted::dropout_backward,
                             .rotary_ = counted::rotary_,
                             .attention_forward = counted::attention_forward,
                             .attention_backward = counted::attention_backward,
                             .attends_to_sequences = counted::attends_to_sequences,
                             .attention_to_cache = counted::attention_to_cache,
                             .embedding_backward = counted::embedding_backward,
                             .logits_forward = counted::logits_forward,
                             .cross_entropy_ = counted::cross_entropy_,
                             .cross_entropy_statistics = counted::cross_entropy_statistics,
                             .cross_entropy_gradient_ = counted::cross_entropy_gradient_};
  return table;
}

}  // namespace tessera::ops
