// SPDX-License-Identifier: MIT
// Meta kernels of torch::nn layers' operators that LibTorch lacks in C++.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <array>
#include <tuple>

#include "lib/plan/meta_kernels.h"

namespace tessera {
namespace {

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Optional = std::optional<at::Tensor>;

at::Tensor like(const at::Tensor& tensor, bool wanted) {
  return wanted ? at::empty_like(tensor, at::MemoryFormat::Contiguous) : at::Tensor();
}

at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const Optional&,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                       bool transposed, at::IntArrayRef output_padding, int64_t groups) {
  std::vector<int64_t> shape{x.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
  for (int64_t dim = 2; dim < x.dim(); ++dim) {
    const auto i = static_cast<size_t>(dim - 2);
    const int64_t reach = dilation[i] * (weight.size(dim) - 1) + 1, pad = 2 * padding[i];
    shape.push_back(transposed ? (x.size(dim) - 1) * stride[i] - pad + reach + output_padding[i]
                               : (x.size(dim) + pad - reach) / stride[i] + 1);
  }
  return at::empty(shape, x.options());
}

Three convolution_backward(const at::Tensor& gradient, const at::Tensor& x,
                           const at::Tensor& weight, at::IntArrayRef, at::IntArrayRef,
                           at::IntArrayRef, bool, at::IntArrayRef, int64_t,
                           std::array<bool, 3> wanted) {
  return {like(x, wanted[0]), like(weight, wanted[1]),
          wanted[2] ? at::empty({gradient.size(1)}, x.options()) : at::Tensor()};
}

Three batch_norm(const at::Tensor& x, const Optional&, const Optional&, const Optional&,
                 const Optional&, bool training, double, double) {
  const int64_t kept = training ? x.size(1) : 0;
  return {like(x, true), at::empty({kept}, x.options()), at::empty({kept}, x.options())};
}

Three batch_norm_backward(const at::Tensor&, const at::Tensor& x, const Optional&, const Optional&,
                          const Optional&, const Optional&, const Optional&, bool, double,
                          std::array<bool, 3> wanted) {
  const auto of_channels = [&](bool is) {
    return is ? at::empty({x.size(1)}, x.options()) : at::Tensor();
  };
  return {like(x, wanted[0]), of_channels(wanted[1]), of_channels(wanted[2])};
}

Three group_norm_backward(const at::Tensor&, const at::Tensor& x, const at::Tensor&,
                          const at::Tensor&, const Optional&, int64_t, int64_t channels, int64_t,
                          int64_t, std::array<bool, 3> wanted) {
  const auto of_channels = [&](bool is) {
    return is ? at::empty({channels}, x.options()) : at::Tensor();
  };
  return {like(x, wanted[0]), of_channels(wanted[1]), of_channels(wanted[2])};
}

Three layer_norm_backward(const at::Tensor&, const at::Tensor& x, at::IntArrayRef,
                          const at::Tensor&, const at::Tensor&, const Optional& weight,
                          const Optional& bias, std::array<bool, 3> wanted) {
  const auto of = [](const Optional& parameter, bool is) {
    return parameter && parameter->defined() ? like(*parameter, is) : at::Tensor();
  };
  return {like(x, wanted[0]), of(weight, wanted[1]), of(bias, wanted[2])};
}

at::Tensor relu(const at::Tensor& x) { return at::empty_like(x); }
at::Tensor& relu_in_place(at::Tensor& x) { return x; }

at::Tensor embedding_dense_backward(const at::Tensor& gradient, const at::Tensor&, int64_t rows,
                                    int64_t, bool) {
  return at::empty({rows, gradient.size(-1)}, gradient.options());
}

at::Tensor hardtanh(const at::Tensor& x, const at::Scalar&, const at::Scalar&) {
  return at::empty_like(x);
}

at::Tensor hardtanh_backward(const at::Tensor& gradient, const at::Tensor&, const at::Scalar&,
                             const at::Scalar&) {
  return at::empty_like(gradient);
}

at::Tensor prelu(const at::Tensor& x, const at::Tensor&) { return at::empty_like(x); }

std::tuple<at::Tensor, at::Tensor> prelu_backward(const at::Tensor&, const at::Tensor& x,
                                                  const at::Tensor& weight) {
  return {at::empty_like(x), at::empty(x.sizes(), weight.options())};
}

at::Tensor one_number(const at::Tensor& x) { return at::empty({}, x.options()); }

}  // namespace

void register_meta_kernels_of_layers(torch::Library& library) {
  library.impl("convolution_overrideable", convolution);
  library.impl("convolution_backward_overrideable", convolution_backward);
  library.impl("native_batch_norm", batch_norm);
  library.impl("native_batch_norm_backward", batch_norm_backward);
  library.impl("native_group_norm_backward", group_norm_backward);
  library.impl("native_layer_norm_backward", layer_norm_backward);
  library.impl("relu", relu);
  library.impl("relu_", relu_in_place);
  library.impl("embedding_dense_backward", embedding_dense_backward);
  library.impl("hardtanh", hardtanh);
  library.impl("hardtanh_backward", hardtanh_backward);
  library.impl("_prelu_kernel", prelu);
  library.impl("_prelu_kernel_backward", prelu_backward);
  for (const char* name : {"max", "min"}) library.impl(name, one_number);
}

}  // namespace tessera
