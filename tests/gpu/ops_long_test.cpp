// SPDX-License-Identifier: MIT
// Kernels on more than 2^31 elements: the last rows get what they get alone.
#include <functional>

#include "tessera/core/device.h"
#include "tessera/ops/kernels.h"
#include "tests/gpu/gpu.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// Enough rows that the same kernel takes them alone: the loss of wide rows asks for a cluster each.
constexpr int64_t kAlone = 256;
constexpr int64_t kWide = 16'384, kWideRows = (int64_t{1} << 31) / kWide + kAlone;
constexpr int64_t kNarrow = 4096, kNarrowRows = (int64_t{1} << 31) / kNarrow + kAlone;
constexpr int64_t kNeeded = int64_t{24} << 30;

at::Tensor drawn(int64_t rows, int64_t n) {
  return at::empty({rows, n}, kOnGpu.dtype(at::kBFloat16)).normal_();
}

at::Tensor last(const at::Tensor& x) { return x.narrow(0, x.size(0) - kAlone, kAlone).clone(); }

// function: of x, and of its last rows.
void check_last(const char* name, const at::Tensor& x,
                const std::function<at::Tensor(const at::Tensor&)>& function) {
  INFO(name);
  const at::Tensor alone = function(last(x)), all = function(x);
  CHECK(last(all).equal(alone));
}

bool has_room() {
  if (device_memory(at::Device(at::kCUDA, 0)).first >= kNeeded) return true;
  WARN("skipped: needs 24 GiB of GPU memory");
  return false;
}

}  // namespace

TEST_CASE("elementwise kernels reach the end of more than 2^31 elements") {
  TESSERA_NEEDS_GPUS(1);
  if (!has_room()) return;
  const at::Tensor x = drawn(kWideRows, kWide);
  check_last("gelu", x, [](const at::Tensor& y) { return ops::gelu_tanh_forward(y); });
  check_last("gelu backward", x, [](const at::Tensor& y) { return ops::gelu_tanh_backward(y, y); });
  check_last("swiglu", x, [](const at::Tensor& y) { return ops::swiglu_forward(y); });
  check_last("swiglu backward", x, [](const at::Tensor& y) {
    const at::Tensor gradient = y.narrow(1, 0, kWide / 2).contiguous();
    return ops::swiglu_backward_(gradient, y, nullptr);
  });
  for (const bool columns : {false, true}) {
    check_last("dropout", x, [&](const at::Tensor& y) {
      const int64_t first = y.size(0) == kAlone ? (kWideRows - kAlone) * kWide : 0;
      ops::ColumnSums sums;
      const at::Tensor bias = at::zeros({kWide}, kOnGpu.dtype(at::kBFloat16));
      return ops::dropout_backward(y, {0.3, 5, first}, columns ? bias : at::Tensor(), sums);
    });
  }
}

TEST_CASE("norms and rotary embedding reach the end of more than 2^31 elements") {
  TESSERA_NEEDS_GPUS(1);
  if (!has_room()) return;
  const at::Tensor x = drawn(kNarrowRows, kNarrow);
  const at::Tensor weight = drawn(1, kNarrow).squeeze(0), bias = drawn(1, kNarrow).squeeze(0);
  check_last("layer norm", x, [&](const at::Tensor& y) {
    return ops::layer_norm_forward(y, weight, bias, 1e-5).output;
  });
  check_last("RMS norm backward", x, [&](const at::Tensor& y) {
    const ops::RmsNormOutput forward = ops::rms_norm_forward(y, weight, 1e-5);
    ops::ColumnSums sums;
    return ops::norm_backward(y, {.x = y, .mean = {}, .rstd = forward.rstd, .weight = weight}, {},
                              {}, sums);
  });
  check_last("rotary embedding", x, [&](const at::Tensor& y) {
    const at::Tensor turned = y.clone(), positions = at::arange(y.size(0), kOnGpu.dtype(at::kLong));
    const at::Tensor angles = at::arange(64, kOnGpu.dtype(at::kFloat)).repeat({kAlone, 1});
    ops::rotary_(turned.view({1, -1, 32, 128}), angles.cos(), angles.sin(),
                 positions.remainder(kAlone).unsqueeze(0), /*back=*/false);
    return turned;
  });
  check_last("norms of heads", x, [&](const at::Tensor& y) {
    const at::Tensor normed = y.clone(), of_head = weight.narrow(0, 0, 128).contiguous();
    ops::head_norm_(normed.unsqueeze(0), {.heads = 16, .key_heads = 8}, {of_head, of_head});
    return normed;
  });
}

TEST_CASE("losses and sums reach the end of more than 2^31 elements") {
  TESSERA_NEEDS_GPUS(1);
  if (!has_room()) return;
  const at::Tensor x = drawn(kWideRows, kWide);
  const auto cross_entropy = [](const at::Tensor& y) {
    const at::Tensor logits = y.clone(), loss = at::empty({y.size(0)}, kOnGpu.dtype(at::kFloat));
    const at::Tensor labels = at::full({y.size(0)}, 7, kOnGpu.dtype(at::kLong));
    ops::cross_entropy_(logits, labels, at::ones({}, kOnGpu.dtype(at::kFloat)), loss);
    return at::cat({logits.narrow(1, 0, 64), loss.unsqueeze(1).to(at::kBFloat16)}, 1);
  };
  check_last("cross-entropy", x, cross_entropy);
  check_last("cross-entropy of many columns", x.view({-1, 4 * kWide}), cross_entropy);
  // Ids and column sums of the last rows alone.
  at::Tensor gradient = at::zeros_like(x);
  gradient.narrow(0, kWideRows - kAlone, kAlone).fill_(1);
  const at::Tensor sum = at::zeros({kWide}, kOnGpu.dtype(at::kBFloat16));
  ops::ColumnSums sums;
  ops::linear_backward_bias(gradient, sum, sums);
  ops::add_column_sums(sums);
  CHECK(sum.eq(kAlone).all().item<bool>());
  at::Tensor ids = at::zeros({kWideRows}, kOnGpu.dtype(at::kLong));
  ids.narrow(0, kWideRows - kAlone, kAlone).fill_(1);
  const at::Tensor table = at::zeros({2, kWide}, kOnGpu.dtype(at::kBFloat16));
  ops::embedding_backward(gradient, ids, table);
  CHECK(table[0].eq(0).all().item<bool>());
  CHECK(table[1].eq(kAlone).all().item<bool>());
}

TEST_CASE("products reach the end of more than 2^31 elements") {
  TESSERA_NEEDS_GPUS(1);
  if (!has_room()) return;
  const at::Tensor x = drawn(kWideRows, 64), weight = drawn(kWide, 64);
  INFO("linear");
  const at::Tensor y = ops::linear_forward(x, weight, {});
  const at::Tensor alone = at::matmul(last(x).to(at::kFloat), weight.to(at::kFloat).t());
  CHECK((last(y).to(at::kFloat) - alone).norm().item<double>() <
        1e-2 * alone.norm().item<double>());
  const at::Tensor back = ops::linear_backward_input(y, weight);
  const at::Tensor back_alone = at::matmul(last(y).to(at::kFloat), weight.to(at::kFloat));
  CHECK((last(back).to(at::kFloat) - back_alone).norm().item<double>() <
        1e-2 * back_alone.norm().item<double>());
}
