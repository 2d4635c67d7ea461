// SPDX-License-Identifier: MIT
// The host waits for nothing in a layer's experts in bf16, and their products are about as fast as
// dense ones of the same FLOPs.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAFunctions.h>

#include <chrono>
#include <functional>
#include <iostream>

#include "lib/models/expert_feed_forward.h"
#include "lib/ops/grouped_product.h"
#include "tests/gpu/gpu.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

struct Layer {
  int64_t tokens = 4096, h = 512, inner = 256, experts = 16, used = 4;
  at::Tensor x() const { return at::randn({tokens, h}, kOnGpu.dtype(at::kBFloat16)); }
  DecoderBlockWeights weights() const {
    const auto options = kOnGpu.dtype(at::kBFloat16);
    DecoderBlockWeights w;
    w.experts = {at::randn({experts, h}, options) / 20,
                 at::randn({experts, 2 * inner, h}, options) / 20,
                 at::randn({experts, h, inner}, options) / 20};
    return w;
  }
  DecoderBlockOptions options() const {
    DecoderBlockOptions options;
    options.gated = true;
    options.routing = {used, true};
    return options;
  }
};

void forward_backward(const at::Tensor& x, const DecoderBlockWeights& w,
                      const DecoderBlockWeights& g, const DecoderBlockOptions& options) {
  tessera::detail::ExpertsSaved saved;
  const at::Tensor y = tessera::detail::experts_forward(x, x, w, options, &saved);
  const tessera::detail::ExpertsBackward back =
      tessera::detail::experts_backward(y, w, g, options, saved);
  tessera::detail::add_expert_gradients(x, back, saved, w, g);
}

double milliseconds(const std::function<void()>& work) {
  constexpr int kWarm = 3, kRuns = 20;
  for (int i = 0; i < kWarm; ++i) work();
  c10::cuda::device_synchronize();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kRuns; ++i) work();
  c10::cuda::device_synchronize();
  const std::chrono::duration<double, std::milli> all = std::chrono::steady_clock::now() - begin;
  return all.count() / kRuns;
}

}  // namespace

TEST_CASE("the host waits for nothing in experts of bf16, forward and backward") {
  TESSERA_NEEDS_GPUS(1);
  const Layer layer;
  const at::Tensor x = layer.x();
  const DecoderBlockWeights w = layer.weights(), g = layer.weights();
  forward_backward(x, w, g, layer.options());  // allocations
  c10::cuda::device_synchronize();
  c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
  CHECK_NOTHROW(forward_backward(x, w, g, layer.options()));
  CHECK_THROWS(x.sum().item<float>());  // it would have been seen
  c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
}

TEST_CASE("products of 128 experts have half of a dense product's rate or more") {
  TESSERA_NEEDS_GPUS(1);
  for (const int64_t tokens : {4096, 16384}) {
    const Layer layer{tokens, 2048, 768, 128, 8};
    const at::Tensor x = layer.x();
    const DecoderBlockWeights w = layer.weights(), g = layer.weights();
    const int64_t rows = tokens * layer.used;
    const at::Tensor every = at::randn({rows, layer.h}, x.options());
    const at::Tensor dense = at::randn({2 * layer.inner, layer.h}, x.options());
    const at::Tensor ends =
        at::arange(1, layer.experts + 1, kOnGpu.dtype(at::kInt)) * (rows / layer.experts);
    const at::Tensor up = w.experts.up.transpose(1, 2), turned = dense.t();
    const double flops = 2.0 * static_cast<double>(rows * layer.h * 2 * layer.inner);
    const auto rate = [&](const char* what, double times, const std::function<void()>& work) {
      const double ms = milliseconds(work);
      std::cout << tokens << " tokens, " << what << ": " << ms << " ms, "
                << times * flops / ms * 1e-9 << " TFLOP/s\n";
      return times / ms;
    };
    const double grouped = rate("grouped", 1, [&] { ops::grouped_product(every, up, ends); });
    const double one = rate("dense", 1, [&] { every.mm(turned); });
    CHECK((tokens < 16384 || grouped > 0.5 * one));
    rate("a layer, forward and backward", 4.5, [&] { forward_backward(x, w, g, layer.options()); });
  }
}
