// What has rows of zeros behind a product's: norms that clear memory beside their work, products
// into the first rows of a longer result.
#include <cmath>

#include "tessera/ops/kernels.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

const auto kOnGpu = at::TensorOptions(at::kCUDA);

// Norms clear other memory beside their work, of whole pieces or not, and nothing around it.
void check_cleared(int64_t rows, int64_t n, int64_t first, int64_t count) {
  INFO("rows " << rows << " n " << n << " first " << first << " count " << count);
  const auto options = kOnGpu.dtype(at::kBFloat16);
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
  const at::Tensor dlayer = ops::layer_norm_backward(gradient, x, layer.mean, layer.rstd, weight,
                                                     bias, {}, {}, sums),
                   drms = ops::rms_norm_backward(gradient, x, rms.rstd, weight, {}, {}, sums);
  clears([&](const at::Tensor& memory) {
    CHECK(ops::layer_norm_backward(gradient, x, layer.mean, layer.rstd, weight, bias, {},
                                   {.cleared = memory}, sums)
              .equal(dlayer));
  });
  clears([&](const at::Tensor& memory) {
    CHECK(ops::rms_norm_backward(gradient, x, rms.rstd, weight, {}, {.cleared = memory}, sums)
              .equal(drms));
  });
}

}  // namespace

TEST_CASE("norms on the GPU clear other memory beside their work") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(61);
  for (const auto& [first, count] :
       {std::pair<int64_t, int64_t>{64, 3072 * 500}, {0, 8}, {64, 0}, {64, 100}, {3, 800}}) {
    check_cleared(1, 1024, first, count);
    check_cleared(700, 1024, first, count);
  }
  check_cleared(64, 2048, 64, 4096);
  check_cleared(64, 4096, 64, 4096);
  check_cleared(64, 1000 - 4, 64, 4096);
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
