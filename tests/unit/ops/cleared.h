// SPDX-License-Identifier: MIT
#pragma once
// Norms that clear other memory on the side, on any device.
#include <ATen/ATen.h>

#include <cmath>

#include "tessera/ops/kernels.h"
#include "tests/support/test.hpp"

namespace tessera::testing {

// `count` elements, in whole pieces or not, are cleared and nothing around them; the norm's results
// are unchanged. x [rows, n].
inline void check_cleared(const at::TensorOptions& options, int64_t rows, int64_t n, int64_t first,
                          int64_t count) {
  INFO("rows " << rows << " n " << n << " first " << first << " count " << count);
  const at::Tensor x = at::randn({rows, n}, options), weight = at::randn({n}, options),
                   bias = at::randn({n}, options), gradient = at::randn({rows, n}, options);
  const auto clears = [&](const auto& norm) {
    const at::Tensor memory = at::full({first + count + 64}, NAN, options);
    norm(memory.narrow(0, first, count));
    CHECK(memory.narrow(0, first, count).eq(0).all().item<bool>());
    CHECK(memory.isnan().sum().item<int64_t>() == first + 64);
  };
  const auto layer = ops::layer_norm_forward(x, weight, bias, 1e-5);
  const auto rms = ops::rms_norm_forward(x, weight, 1e-5);
  clears([&](const at::Tensor& memory) {
    CHECK(ops::layer_norm_forward(x, weight, bias, 1e-5, memory).output.equal(layer.output));
  });
  clears([&](const at::Tensor& memory) {
    CHECK(ops::rms_norm_forward(x, weight, 1e-5, memory).output.equal(rms.output));
  });
  ops::ColumnSums sums;
  const ops::NormInput in_layer{x, layer.mean, layer.rstd, weight, bias},
      in_rms{.x = x, .rstd = rms.rstd, .weight = weight};
  const at::Tensor dlayer = ops::norm_backward(gradient, in_layer, {}, {}, sums),
                   drms = ops::norm_backward(gradient, in_rms, {}, {}, sums);
  clears([&](const at::Tensor& memory) {
    CHECK(ops::norm_backward(gradient, in_layer, {}, {.cleared = memory}, sums).equal(dlayer));
  });
  clears([&](const at::Tensor& memory) {
    CHECK(ops::norm_backward(gradient, in_rms, {}, {.cleared = memory}, sums).equal(drms));
  });
}

}  // namespace tessera::testing
