// Chooses between the attention graph and the reference. Key masks take the reference: per-key
// tensors have wrong gradients in cuDNN 9.19's backward graph. Padding on the right needs no mask
// under causal attention, so training rarely comes here with one.
#include "lib/ops/cuda/attention_graph.h"
#include "lib/ops/cuda/entries.h"
#include "lib/ops/cuda/support.h"

namespace tessera::ops::cuda {
namespace {

AttentionShape shape_of(const at::Tensor& qkv, const at::Tensor& slopes, const PackedRows& packed) {
  const int64_t heads = slopes.size(0);
  return {qkv.size(0),       qkv.size(1),     heads, qkv.size(2) / (3 * heads),
          qkv.scalar_type(), packed.defined()};
}

bool fits_graph(const at::Tensor& qkv, const at::Tensor& slopes, const at::Tensor& mask,
                const PackedRows& packed) {
  return !mask.defined() && fits(qkv.scalar_type(), {qkv}) && qkv.numel() > 0 &&
         slopes.scalar_type() == at::kFloat && slopes.is_contiguous() &&
         has_attention_graph(shape_of(qkv, slopes, packed));
}

}  // namespace

AttentionOutput alibi_attention_forward(const at::Tensor& qkv, const at::Tensor& slopes,
                                        const at::Tensor& attention_mask,
                                        const PackedRows& packed) {
  if (!fits_graph(qkv, slopes, attention_mask, packed)) {
    return reference::alibi_attention_forward(qkv, slopes, attention_mask, packed);
  }
  const AttentionShape shape = shape_of(qkv, slopes, packed);
  AttentionOutput result{
      at::empty({shape.batch, shape.sequence, shape.heads * shape.d}, qkv.options()),
      at::empty({shape.batch, shape.heads, shape.sequence}, slopes.options())};
  run_attention_forward(shape, {.qkv = qkv.data_ptr(),
                                .slopes = slopes.data_ptr(),
                                .first_keys = data_or_null(packed.first_keys),
                                .output = result.output.data_ptr(),
                                .log_sum_exp = result.log_sum_exp.data_ptr()});
  return result;
}

at::Tensor alibi_attention_backward(const at::Tensor& gradient, const at::Tensor& qkv,
                                    const at::Tensor& slopes, const at::Tensor& attention_mask,
                                    const AttentionOutput& forward, const PackedRows& packed) {
  if (!fits_graph(qkv, slopes, attention_mask, packed)) {
    return reference::alibi_attention_backward(gradient, qkv, slopes, attention_mask, forward,
                                               packed);
  }
  at::Tensor dqkv = at::empty_like(qkv);
  at::Tensor incoming = gradient.contiguous();
  if (!is_aligned(incoming)) incoming = incoming.clone();
  run_attention_backward(shape_of(qkv, slopes, packed),
                         {.qkv = qkv.data_ptr(),
                          .slopes = slopes.data_ptr(),
                          .first_keys = data_or_null(packed.first_keys),
                          .output = forward.output.data_ptr(),
                          .log_sum_exp = forward.log_sum_exp.data_ptr(),
                          .gradient = incoming.data_ptr(),
                          .dqkv = dqkv.data_ptr()});
  return dqkv;
}

}  // namespace tessera::ops::cuda
