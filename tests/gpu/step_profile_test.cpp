// SPDX-License-Identifier: MIT
// bench_strategies --profile on a GPU.
#include <ATen/ATen.h>

#include <algorithm>

#include "benchmarks/strategies/profiler.h"
#include "tessera/core/device.h"
#include "tessera/ops/kernels.h"
#include "tests/gpu/gpu.h"

using namespace tessera;
using namespace tessera::bench;

TEST_CASE("a profile of a GPU has kernels, with the work of the operations that launched them") {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu(at::kCUDA, 0);
  const auto options = at::TensorOptions(at::kBFloat16).device(gpu);
  const at::Tensor x = at::ones({512, 256}, options), weight = at::ones({1024, 256}, options);
  const at::Tensor scale = at::ones({256}, options), shift = at::zeros({256}, options);
  const auto work = [&] {
    ops::linear_forward(x, weight, {});
    ops::layer_norm_forward(x, scale, shift, 1e-5);
    at::relu(x);
    synchronize_device(gpu);
  };
  for (int i = 0; i < 4; ++i) work();  // settles the product's algorithm
  Profiler profiler(gpu);
  work();
  const Calls calls = calls_of(profiler.stop(), /*on_gpu=*/true);
  REQUIRE(!calls.calls.empty());
  CHECK(calls.covered_s > 0);
  double flops = 0, bytes = 0;
  int foreign = 0;
  for (const KernelCall& call : calls.calls) {
    INFO(call.name << ", " << call.operation);
    CHECK(call.seconds > 0);
    CHECK(call.name.find('<') == std::string::npos);
    if (call.operation == "linear_forward") flops += call.work.flops;
    if (call.operation == "layer_norm_forward") bytes += call.work.bytes;
    foreign += call.operation.empty() ? 1 : 0;
  }
  CHECK(flops == 2.0 * 512 * 256 * 1024);
  CHECK(bytes == 2.0 * 512 * 256 * 2);
  CHECK(foreign > 0);
}
