// SPDX-License-Identifier: MIT
// A layer's product in 8 bits and its gradients, against products of codes in fp64.
#include "lib/models/linear_fp8.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "tests/support/test.hpp"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;
using tessera::detail::BlockProduct;
using tessera::detail::LinearFp8;

namespace {

at::Tensor rounded(const at::Tensor& x, at::ScalarType dtype, Fp8 scaling) {
  const ops::Fp8Matrix made = ops::fp8_matrix(x, dtype, scaling);
  return made.codes.to(at::kDouble) * made.scale.to(at::kDouble);
}

// left right^T of what is left in 8 bits of both.
at::Tensor product(const at::Tensor& left, at::ScalarType of_left, const at::Tensor& right,
                   Fp8 scaling) {
  return rounded(left, of_left, scaling).mm(rounded(right, at::kFloat8_e4m3fn, scaling).t());
}

struct Layer {
  const char* name;
  ProductWeights w;
};

std::vector<Layer> layers() {
  const auto weight = [](int64_t out, int64_t in) { return leaf(at::randn({out, in}) * 0.1); };
  return {{"one weight", {{weight(24, 20)}, {}}},
          {"one weight, stored [in, out]", {{weight(20, 24)}, {}, true}},
          {"three weights", {{weight(12, 20), weight(6, 20), weight(6, 20)}, {}}}};
}

}  // namespace

TEST_CASE("a linear layer in 8 bits: values e4m3, output gradients e5m2, joint scales") {
  at::manual_seed(5);
  for (const Layer& layer : layers()) {
    for (const Fp8 scaling : {Fp8::kTensorwise, Fp8::kRowwise}) {
      INFO(layer.name << " scaling " << int(scaling));
      DecoderBlockOptions options;
      options.fp8 = scaling;
      const LinearFp8 products(options, BlockProduct::kUp);
      const at::Tensor x = leaf(at::randn({2, 7, 20})), bias = leaf(at::randn({24}));
      const at::Tensor y = tessera::detail::linear_fp8(x, layer.w, bias, products);
      // Nine decades, of which e4m3 would lose five.
      const at::Tensor dy = at::randn({2, 7, 24}) * at::exp(at::randn({2, 7, 24}) * 5);
      for (const at::Tensor& weight : layer.w.weights) weight.mutable_grad() = at::Tensor();
      torch::autograd::backward({y}, {dy});

      std::vector<at::Tensor> rows;
      for (const at::Tensor& weight : layer.w.weights) {
        rows.push_back(layer.w.in_out ? weight.detach().t() : weight.detach());
      }
      const at::Tensor w = at::cat(rows), x2 = x.detach().view({-1, 20}), dy2 = dy.view({-1, 24});
      const at::Tensor of_y = product(x2, at::kFloat8_e4m3fn, w, scaling) + bias.detach(),
                       of_x = product(dy2, at::kFloat8_e5m2, w.t(), scaling),
                       of_w = product(dy2.t(), at::kFloat8_e5m2, x2.t(), scaling);
      CHECK(relative_error(y.detach().view({-1, 24}), of_y) < 1e-6);
      CHECK(relative_error(x.grad().view({-1, 20}), of_x) < 1e-6);
      CHECK(relative_error(bias.grad(), dy2.sum(0)) < 1e-6);
      int64_t row = 0;
      for (size_t i = 0; i < layer.w.weights.size(); ++i) {
        const at::Tensor gradient = layer.w.weights[i].grad();
        const at::Tensor own = of_w.narrow(0, row, layer.w.outputs(i));
        CHECK(relative_error(gradient, layer.w.in_out ? own.t() : own) < 1e-6);
        row += layer.w.outputs(i);
      }
    }
  }
}

TEST_CASE("a frozen weight in 8 bits gets no gradient, its input does") {
  at::manual_seed(6);
  for (Layer layer : layers()) {
    for (const at::Tensor& weight : layer.w.weights) at::Tensor(weight).set_requires_grad(false);
    DecoderBlockOptions options;
    options.fp8 = Fp8::kTensorwise;
    const at::Tensor x = leaf(at::randn({5, 20}));
    const at::Tensor y =
        tessera::detail::linear_fp8(x, layer.w, {}, LinearFp8(options, BlockProduct::kQkv));
    torch::autograd::backward({y.sum()});
    CHECK(x.grad().defined());
    for (const at::Tensor& weight : layer.w.weights) CHECK_FALSE(weight.grad().defined());
  }
}

// The weights hold NaN, as a strategy may leave what nobody reads.
TEST_CASE("weights that are stored as codes are multiplied as they are, in both directions") {
  at::manual_seed(6);
  for (Layer& layer : layers()) {
    INFO(layer.name);
    const at::Tensor scale = at::full({1, 1}, 0x1p-9, at::kFloat);
    const auto stored = std::make_shared<ops::Fp8Codes>();
    std::vector<at::Tensor> rows;
    for (const at::Tensor& weight : layer.w.weights) {
      const at::Tensor codes = (weight.detach() / scale).to(at::kFloat8_e4m3fn);
      (*stored)[weight.unsafeGetTensorImpl()] = {codes, scale};
      const at::Tensor value = codes.to(at::kDouble) * scale.to(at::kDouble);
      rows.push_back(layer.w.in_out ? value.t() : value);
      at::Tensor(weight).set_requires_grad(false).fill_(std::nan(""));
    }
    const at::Tensor w = at::cat(rows);
    DecoderBlockOptions options;
    options.fp8 = Fp8::kTensorwise;
    options.fp8_weights = std::make_shared<ops::Fp8Weights>(stored, /*keeps=*/false);
    const LinearFp8 products(options, BlockProduct::kUp);
    const at::Tensor x = leaf(at::randn({2, 7, 20})), dy = at::randn({2, 7, 24});
    const at::Tensor y = tessera::detail::linear_fp8(x, layer.w, {}, products);
    torch::autograd::backward({y}, {dy});
    const at::Tensor of_y =
        rounded(x.detach().view({-1, 20}), at::kFloat8_e4m3fn, Fp8::kTensorwise).mm(w.t());
    const at::Tensor of_x = rounded(dy.view({-1, 24}), at::kFloat8_e5m2, Fp8::kTensorwise).mm(w);
    CHECK(relative_error(y.detach().view({-1, 24}), of_y) < 1e-6);
    CHECK(relative_error(x.grad().view({-1, 20}), of_x) < 1e-6);
  }
}
