// SPDX-License-Identifier: MIT
// Spare zero rows behind a product: norms that clear memory on the side, and products into the
// first rows of a longer result.
#include "tessera/ops/kernels.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/ops/cleared.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

namespace {}  // namespace

TEST_CASE("norms on the GPU clear other memory beside their work") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(61);
  const auto options = kOnGpu.dtype(at::kBFloat16);
  for (const auto& [first, count] :
       {std::pair<int64_t, int64_t>{64, 3072 * 500}, {0, 8}, {64, 0}, {64, 100}, {3, 800}}) {
    check_cleared(options, 1, 1024, first, count);
    check_cleared(options, 700, 1024, first, count);
  }
  check_cleared(options, 64, 2048, 64, 4096);
  check_cleared(options, 64, 4096, 64, 4096);
  check_cleared(options, 64, 1000 - 4, 64, 4096);
}

TEST_CASE("a product on the GPU into the first rows of a longer result") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(62);
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
    const auto options = kOnGpu.dtype(type);
    const at::Tensor x = at::randn({3, 7, 64}, options), weight = at::randn({96, 64}, options),
                     bias = at::randn({96}, options), result = at::full({30, 96}, 5, options);
    CHECK(ops::linear_forward(x, weight, bias, {}, result).is_same(result));
    CHECK(relative_error(result.narrow(0, 0, 21),
                         ops::linear_forward(x, weight, bias).view({21, 96})) < 1e-5);
    CHECK(result.narrow(0, 21, 9).eq(5).all().item<bool>());
  }
}
