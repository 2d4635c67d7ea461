#include "lib/ops/counted.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

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

// LibTorch's flash kernels: the CPU's has one tile of scores a thread, CUDA's backward sums the
// queries' gradient in fp32.
class CountedAttention : public Function<CountedAttention> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v) {
    const at::Tensor output = empty_by_token(q);
    const at::Tensor log_sum_exp = empty_fp32({q.size(0), q.size(1), q.size(2)}, q);
    const at::Tensor tiles = tiles_of(q, k);
    context->save_for_backward({q, k, v, output, log_sum_exp});
    return output;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    const at::Tensor dq = empty_by_token(q), dk = empty_by_token(k), dv = empty_by_token(v);
    at::Tensor scratch;
    if (runs_on_gpu(q)) {
      constexpr int64_t kTile = 128, kColumns = 32;
      const int64_t rows = (q.size(2) + kTile - 1) / kTile * kTile;
      const int64_t d = (q.size(3) + kColumns - 1) / kColumns * kColumns;
      scratch = empty_fp32({q.size(0), q.size(1), rows, d + 1}, q);
    } else {
      scratch = tiles_of(q, k);
    }
    return {dq, dk, dv};
  }

 private:
  static at::Tensor tiles_of(const at::Tensor& q, const at::Tensor& k) {
    if (runs_on_gpu(q)) return {};
    const int64_t queries = q.size(2) >= 768 ? 256 : q.size(2) >= 192 ? 64 : 32;
    const int64_t rows = std::min(queries, q.size(2)), keys = std::min<int64_t>(512, k.size(2));
    return empty_fp32({at::get_num_threads(), rows * (keys + 2 + q.size(3))}, q);
  }
};

}  // namespace

at::Tensor counted_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return CountedAttention::apply(q, k, v);
}

namespace counted {

AttentionOutput attention_forward(const at::Tensor& qkv, const SelfAttention& attention,
                                  const at::Tensor&, const PackedRows&) {
  const int64_t batch = qkv.size(0), sequence = qkv.size(1);
  const at::Tensor queries = split_heads(qkv, attention).q;
  return {at::empty({batch, sequence, attention.heads * queries.size(3)}, qkv.options()),
          empty_fp32({batch, attention.heads, sequence}, qkv)};
}

at::Tensor attention_backward(const at::Tensor&, const at::Tensor& qkv, const SelfAttention&,
                              const at::Tensor&, const AttentionOutput&, const PackedRows&) {
  return at::empty_like(qkv);
}

}  // namespace counted

const CudaOps& counted_cuda_ops() {
  static const CudaOps table{.attention_forward = &counted::attention_forward,
                             .attention_backward = &counted::attention_backward};
  return table;
}

}  // namespace tessera::ops
