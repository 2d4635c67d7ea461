// Chooses between the attention graph and the reference. Key masks take the reference: in
// cuDNN 9.19's backward graph neither per-key tensors nor comparisons with per-row bounds give
// right gradients. Padding on the right needs no mask under causal attention, so training rarely
// comes here with one.
#include "lib/ops/cuda/attention_graph.h"
#include "lib/ops/cuda/entries.h"
#include "lib/ops/cuda/support.h"

namespace tessera::ops::cuda {
namespace {

AttentionShape shape_of(const at::Tensor& qkv, const at::Tensor& slopes) {
  const int64_t heads = slopes.size(0);
  return {qkv.size(0), qkv.size(1), heads, qkv.size(2) / (3 * heads), qkv.scalar_type()};
}

bool fits_graph(const at::Tensor& qkv, const at::Tensor& slopes, const at::Tensor& mask) {
  return !mask.defined() && fits(qkv.scalar_type(), {qkv}) && qkv.numel() > 0 &&
         slopes.scalar_type() == at::kFloat && slopes.is_contiguous() &&
         has_attention_graph(shape_of(qkv, slopes));
}

}  // namespace

AttentionOutput alibi_attention_forward(const at::Tensor& qkv, const at::Tensor& slopes,
                                        const at::Tensor& attention_mask) {
  if (!fits_graph(qkv, slopes, attention_mask)) {
    return reference::alibi_attention_forward(qkv, slopes, attention_mask);
  }
  const AttentionShape shape = shape_of(qkv, slopes);
  AttentionOutput result{
      at::empty({shape.batch, shape.sequence, shape.heads * shape.d}, qkv.options()),
      at::empty({shape.batch, shape.heads, shape.sequence}, slopes.options())};
  run_attention_forward(shape, {qkv.data_ptr(), slopes.data_ptr(), result.output.data_ptr(),
                                result.log_sum_exp.data_ptr()});
  return result;
}

at::Tensor alibi_attention_backward(const at::Tensor& gradient, const at::Tensor& qkv,
                                    const at::Tensor& slopes, const at::Tensor& attention_mask,
                                    const AttentionOutput& forward) {
  if (!fits_graph(qkv, slopes, attention_mask)) {
    return reference::alibi_attention_backward(gradient, qkv, slopes, attention_mask, forward);
  }
  at::Tensor dqkv = at::empty_like(qkv);
  at::Tensor incoming = gradient.contiguous();
  if (!is_aligned(incoming)) incoming = incoming.clone();
  run_attention_backward(shape_of(qkv, slopes),
                         {qkv.data_ptr(), slopes.data_ptr(), forward.output.data_ptr(),
                          forward.log_sum_exp.data_ptr(), incoming.data_ptr(), dqkv.data_ptr()});
  return dqkv;
}

}  // namespace tessera::ops::cuda
