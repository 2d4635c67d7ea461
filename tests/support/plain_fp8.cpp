// SPDX-License-Identifier: MIT
#include "tests/support/plain_fp8.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace tessera::testing {
namespace {

struct Format {
  double mantissa, least_exponent, largest;
};
constexpr Format kValues{3, -6, 448}, kGradients{2, -14, 57344};

// Nearest numbers of the format, in fp64. x [rows, inner], with a scale each or one for all.
at::Tensor rounded(const at::Tensor& x, const Format& format, Fp8 scaling) {
  const at::Tensor single = x.to(at::kFloat);
  const at::Tensor largest =
      scaling == Fp8::kRowwise ? single.abs().amax(1, true) : single.abs().max();
  const at::Tensor scale =
      at::where(largest.eq(0), at::ones_like(largest), largest / format.largest);
  const at::Tensor value = (single / scale).to(at::kDouble);
  const at::Tensor exponent =
      std::get<1>(at::frexp(value)).sub(1).clamp_min(format.least_exponent).to(at::kDouble);
  const at::Tensor step = at::exp2(exponent - format.mantissa);
  return at::round(value / step) * step * scale.to(at::kDouble);
}

at::Tensor product(const at::Tensor& left, const Format& of_left, const at::Tensor& right,
                   Fp8 scaling) {
  return rounded(left, of_left, scaling).mm(rounded(right, kValues, scaling).t());
}

class Linear : public torch::autograd::Function<Linear> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, int64_t scaling) {
    context->save_for_backward({x, weight});
    context->saved_data["scaling"] = scaling;
    return product(x, kValues, weight, static_cast<Fp8>(scaling)).to(x.scalar_type());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto scaling = static_cast<Fp8>(context->saved_data["scaling"].toInt());
    const at::Tensor &x = saved[0], &weight = saved[1], &dy = gradients[0];
    return {product(dy, kGradients, weight.t(), scaling).to(x.scalar_type()),
            product(dy.t(), kGradients, x.t(), scaling).to(weight.scalar_type()),
            {}};
  }
};

}  // namespace

at::Tensor plain_fp8_linear(const at::Tensor& x, const at::Tensor& weight, Fp8 scaling) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  return Linear::apply(x.flatten(0, -2), weight, static_cast<int64_t>(scaling)).view(shape);
}

}  // namespace tessera::testing
