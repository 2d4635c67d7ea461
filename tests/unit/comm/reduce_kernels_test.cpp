// SPDX-License-Identifier: MIT
#include "lib/comm/reduce_kernels.h"

#include <limits>

#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

namespace tessera {
namespace {

at::Tensor reduce(const std::vector<at::Tensor>& tensors, ReduceOp op) {
  at::Tensor result = at::empty_like(tensors.front());
  std::vector<ReduceInput> inputs;
  for (const at::Tensor& tensor : tensors) inputs.push_back({tensor.const_data_ptr(), 0});
  const ReduceOutput output{result.data_ptr(), 0};
  reduce_elements(result.scalar_type(), op, inputs, {&output, 1}, result.numel());
  return result;
}

TEST_CASE("half precision accumulates in fp32 and rounds once") {
  // 2048 + 1 is not representable in fp16: pairwise rounding would give 2048, one rounding gives
  // 2050.
  const std::vector<float> values = {2048, 1, 1};
  std::vector<at::Tensor> tensors;
  for (const float value : values) tensors.push_back(at::full({5000}, value, at::kHalf));
  test::require_bit_equal(reduce(tensors, ReduceOp::kSum), at::full({5000}, 2050, at::kHalf),
                          "fp16");
  for (auto& tensor : tensors) tensor = tensor.to(at::kBFloat16) / 8;  // 256 + .125 + .125
  tensors.push_back(at::full({5000}, 0.75, at::kBFloat16));
  tensors.push_back(at::full({5000}, 1, at::kBFloat16));
  test::require_bit_equal(reduce(tensors, ReduceOp::kSum), at::full({5000}, 258, at::kBFloat16),
                          "bf16");
}

TEST_CASE("sums, maxima and minima of every dtype agree with ATen") {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong,
                                     at::kInt, at::kChar, at::kByte}) {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 3; ++i) {
      tensors.push_back((at::arange(4099) * (7 + i)).remainder(40).to(dtype));
    }
    const at::Tensor stacked = at::stack(tensors);
    test::require_bit_equal(reduce(tensors, ReduceOp::kSum),
                            stacked.to(at::kDouble).sum(0).to(dtype), concat("sum of ", dtype));
    test::require_bit_equal(reduce(tensors, ReduceOp::kMax), stacked.amax(0),
                            concat("max of ", dtype));
    test::require_bit_equal(reduce(tensors, ReduceOp::kMin), stacked.amin(0),
                            concat("min of ", dtype));
  }
}

TEST_CASE("NaN survives every reduction") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    const at::Tensor result = reduce({at::tensor({1.f, nan}), at::tensor({nan, 2.f})}, op);
    REQUIRE(result.isnan().all().item<bool>());
  }
}

}  // namespace
}  // namespace tessera
