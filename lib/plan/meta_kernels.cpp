// SPDX-License-Identifier: MIT
#include "lib/plan/meta_kernels.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/NativeFunctions.h>
#include <torch/library.h>

#include <tuple>

#include "lib/core/meta.h"
#include "lib/ops/counted.h"

namespace tessera {
namespace {

at::Tensor index_select(const at::Tensor& x, int64_t dim, const at::Tensor& index) {
  std::vector<int64_t> shape = x.sizes().vec();
  if (!shape.empty()) shape[static_cast<size_t>(at::maybe_wrap_dim(dim, x.dim()))] = index.numel();
  return at::empty(shape, x.options());
}

at::Tensor where(const at::Tensor& condition, const at::Tensor& a, const at::Tensor& b) {
  const auto shape = at::infer_size(condition.sizes(), at::infer_size(a.sizes(), b.sizes()));
  return at::empty(shape, a.options().dtype(at::result_type(a, b)));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> native_layer_norm(const at::Tensor& x,
                                                                 at::IntArrayRef normalized,
                                                                 const std::optional<at::Tensor>&,
                                                                 const std::optional<at::Tensor>&,
                                                                 double) {
  std::vector<int64_t> rows = x.sizes().vec();
  for (size_t i = rows.size() - normalized.size(); i < rows.size(); ++i) rows[i] = 1;
  return {at::empty_like(x, at::MemoryFormat::Contiguous), at::empty(rows, x.options()),
          at::empty(rows, x.options())};
}

at::Tensor logsumexp(const at::Tensor& x, at::IntArrayRef dims, bool keep) {
  const at::Tensor most = at::amax(x, dims, /*keepdim=*/true);
  const at::Tensor terms = (x - most).exp_();
  return at::empty(keep ? most.sizes() : most.squeeze(dims).sizes(), x.options());
}

// Assumes that all rows are distinct.
std::tuple<at::Tensor, at::Tensor, at::Tensor> unique_dim(const at::Tensor& x, int64_t, bool, bool,
                                                          bool) {
  const auto places = x.options().dtype(at::kLong);
  return {at::empty_like(x), at::empty({x.size(0)}, places), at::empty({x.size(0)}, places)};
}

at::Tensor& index_put(at::Tensor& x, const torch::List<std::optional<at::Tensor>>&,
                      const at::Tensor&, bool, bool) {
  return x;
}

const at::Tensor& resized(const at::Tensor& out, at::IntArrayRef shape) {
  out.resize_(shape);
  return out;
}

at::Tensor& unary_out(const at::Tensor& x, at::Tensor& out) {
  resized(out, x.sizes());
  return out;
}

at::Tensor& binary_out(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  resized(out, at::infer_size(a.sizes(), b.sizes()));
  return out;
}

at::Tensor floor_divide(const at::Tensor& a, const at::Tensor& b) {
  return at::empty(at::infer_size(a.sizes(), b.sizes()), a.options().dtype(at::result_type(a, b)));
}

at::Tensor flip(const at::Tensor& x, at::IntArrayRef) { return at::empty_like(x); }

at::Tensor solve_triangular(const at::Tensor& a, const at::Tensor& b, bool, bool, bool) {
  const at::IntArrayRef of_a = a.sizes(), of_b = b.sizes();
  std::vector<int64_t> shape =
      at::infer_size(of_a.slice(0, of_a.size() - 2), of_b.slice(0, of_b.size() - 2));
  shape.insert(shape.end(), {b.size(-2), b.size(-1)});
  return at::empty(shape, b.options());
}

at::Tensor histc(const at::Tensor& x, int64_t bins, const at::Scalar&, const at::Scalar&) {
  return at::empty({bins}, x.options());
}

// Products of groups of rows, whose ends stand in offsets: each operand is a matrix whose rows or
// columns are grouped, or has a matrix for each group.
at::Tensor grouped_mm(const at::Tensor& a, const at::Tensor& b,
                      const std::optional<at::Tensor>& ends, const std::optional<at::Tensor>&,
                      std::optional<at::ScalarType> dtype) {
  const auto options = a.options().dtype(dtype.value_or(a.scalar_type()));
  if (a.dim() == 2 && b.dim() == 2) {
    return at::empty({ends->size(0), a.size(0), b.size(1)}, options);
  }
  if (a.dim() == 3 && b.dim() == 3) return at::empty({a.size(0), a.size(1), b.size(2)}, options);
  return at::empty({a.size(-2), b.size(-1)}, options);
}

at::Tensor& where_out(const at::Tensor& condition, const at::Tensor& a, const at::Tensor& b,
                      at::Tensor& out) {
  resized(out, at::infer_size(condition.sizes(), at::infer_size(a.sizes(), b.sizes())));
  return out;
}

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& x, double,
                                                  std::optional<bool>) {
  return {at::empty_like(x), at::empty_like(x, at::kBool)};
}

at::Tensor native_dropout_backward(const at::Tensor& gradient, const at::Tensor&, double) {
  return at::empty_like(gradient);
}

// A GPU's kernel also allocates the product of both; LibTorch's meta kernel does not. Elsewhere
// than in a dry run: the formula, whose operations have gradients.
at::Tensor softmax_backward(const at::Tensor& gradient, const at::Tensor& output, int64_t dim,
                            at::ScalarType input_dtype) {
  if (!observes_meta()) {
    const at::Tensor product = gradient * output;
    return (product - output * product.sum(dim, /*keepdim=*/true)).to(input_dtype);
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor product = runs_on_gpu(gradient) ? gradient * output : at::Tensor();
  return at::_softmax_backward_data(gradient, output, dim, input_dtype);
}

// Elsewhere than in a dry run LibTorch's own, for tensors of other users of this process.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                     std::optional<double> scale, bool shares_heads) {
  if (!observes_meta()) {
    return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, is_causal,
                                                    scale, shares_heads);
  }
  return ops::counted_attention({query, key, value, mask, dropout, is_causal, scale, shares_heads});
}

}  // namespace

void register_meta_kernels() {
  [[maybe_unused]] static const torch::Library library = [] {
    torch::Library made(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
    made.impl("index_select", index_select);
    made.impl("where.self", where);
    made.impl("native_layer_norm", native_layer_norm);
    made.impl("where.self_out", where_out);
    made.impl("floor_divide", floor_divide);
    made.impl("flip", flip);
    made.impl("linalg_solve_triangular", solve_triangular);
    made.impl("histc", histc);
    made.impl("_grouped_mm", grouped_mm);
    made.impl("logsumexp", logsumexp);
    made.impl("_index_put_impl_", index_put);
    made.impl("unique_dim", unique_dim);
    made.impl("native_dropout", native_dropout);
    made.impl("native_dropout_backward", native_dropout_backward);
    for (const char* name : {"abs.out", "logical_not.out"}) made.impl(name, unary_out);
    for (const char* name : {"logical_and.out", "logical_or.out"}) made.impl(name, binary_out);
    register_meta_kernels_of_layers(made);
    made.impl("scaled_dot_product_attention", attention);
    return made;
  }();
  // Attention is composite elsewhere: its gradient is that of the kernel.
  [[maybe_unused]] static const torch::Library autograd = [] {
    torch::Library made(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradMeta, __FILE__,
                        __LINE__);
    made.impl("scaled_dot_product_attention", attention);
    made.impl("_softmax_backward_data", softmax_backward);
    return made;
  }();
}

}  // namespace tessera
