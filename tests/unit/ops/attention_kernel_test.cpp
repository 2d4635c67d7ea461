// SPDX-License-Identifier: MIT
// The kernel that LibTorch takes for attention.
#include "lib/ops/attention_kernel.h"

#include <ATen/ATen.h>

#include <functional>

#include "lib/core/meta.h"
#include "tests/support/test.hpp"

using namespace tessera;
using ops::AttentionArguments;
using ops::AttentionKernel;

namespace {

struct Shape {
  at::ScalarType dtype = at::kFloat;
  int64_t heads = 4, key_heads = 4, queries = 8, keys = 8, d = 16, value_d = 16;
};

AttentionArguments arguments(const Shape& s, at::Device device = at::kCPU) {
  const auto options = at::dtype(s.dtype).device(device);
  return {.query = at::zeros({2, s.heads, s.queries, s.d}, options),
          .key = at::zeros({2, s.key_heads, s.keys, s.d}, options),
          .value = at::zeros({2, s.key_heads, s.keys, s.value_d}, options)};
}

AttentionKernel on_gpu(const Shape& shape,
                       const std::function<void(AttentionArguments&)>& change = {}) {
  const MetaStandsFor stands(at::kCUDA);
  AttentionArguments all = arguments(shape, at::kMeta);
  if (change) change(all);
  return ops::attention_kernel(all);
}

at::Tensor meta_mask(at::IntArrayRef shape) { return at::zeros(shape, at::device(at::kMeta)); }

}  // namespace

TEST_CASE("the kernel of the CPU's attention is LibTorch's choice") {
  std::vector<AttentionArguments> all;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    all.push_back(arguments({.dtype = dtype}));
  }
  const auto add = [&](const Shape& shape, const std::function<void(AttentionArguments&)>& change) {
    all.push_back(arguments(shape));
    change(all.back());
  };
  const auto as_is = [](AttentionArguments&) {};
  add({.value_d = 8}, as_is);
  add({.key_heads = 1}, as_is);
  add({.key_heads = 3}, [](auto& a) { a.shares_heads = true; });
  add({.key_heads = 2}, [](auto& a) { a.shares_heads = true; });
  add({.keys = 5}, [](auto& a) { a.is_causal = true; });
  add({.keys = 0}, as_is);
  add({}, [](auto& a) { a.dropout = 0.5; });
  add({}, [](auto& a) { a.query = a.query.transpose(2, 3).contiguous().transpose(2, 3); });
  add({}, [](auto& a) { a.value = a.value.to(at::kDouble); });
  add({}, [](auto& a) { a.query = a.query[0], a.key = a.key[0], a.value = a.value[0]; });
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{8, 8}, {2, 1, 8, 8}, {1, 4, 1, 8}, {8, 8, 8}, {2, 2, 8, 8}}) {
    add({}, [&](auto& a) { a.mask = at::zeros(shape); });
  }
  add({}, [](auto& a) { a.mask = at::zeros({8, 8}).requires_grad_(); });
  for (const AttentionArguments& a : all) {
    INFO(a.query.sizes() << " " << a.key.sizes() << " " << a.value.sizes() << " "
                         << (a.mask ? a.mask->sizes() : at::IntArrayRef()));
    constexpr int64_t kLibTorchsFlash = 1;
    const bool flash =
        at::_fused_sdp_choice(a.query, a.key, a.value, a.mask, a.dropout, a.is_causal, a.scale,
                              a.shares_heads) == kLibTorchsFlash;
    CHECK((ops::attention_kernel(a) == AttentionKernel::kFlash) == flash);
  }
}

TEST_CASE("attention on a GPU takes cuDNN, flash, the efficient kernel or products") {
  const Shape half{.dtype = at::kBFloat16};
  const auto masked = [](AttentionArguments& a) { a.mask = meta_mask({2, 1, 8, 8}); };
  CHECK(on_gpu(half) == AttentionKernel::kCudnn);
  CHECK(on_gpu(half, masked) == AttentionKernel::kCudnn);
  CHECK(on_gpu({.dtype = at::kHalf, .d = 192, .value_d = 128}) == AttentionKernel::kCudnn);
  CHECK(on_gpu({.dtype = at::kHalf, .d = 20, .value_d = 20}) == AttentionKernel::kFlash);
  CHECK(on_gpu({.dtype = at::kHalf, .d = 256, .value_d = 256}) == AttentionKernel::kFlash);
  CHECK(on_gpu({.dtype = at::kHalf, .d = 256, .value_d = 256}, masked) ==
        AttentionKernel::kEfficient);
  CHECK(on_gpu({.dtype = at::kHalf, .d = 512, .value_d = 512}) == AttentionKernel::kEfficient);
  CHECK(on_gpu({.dtype = at::kHalf, .d = 20, .value_d = 20}, masked) == AttentionKernel::kMath);
  CHECK(on_gpu(half, [](auto& a) {
          a.mask = meta_mask({8, 8}).requires_grad_();
        }) == AttentionKernel::kEfficient);
  CHECK(on_gpu(half, [](auto& a) { a.dropout = 0.125; }) == AttentionKernel::kCudnn);
  CHECK(on_gpu(half, [](auto& a) { a.dropout = 0.1; }) == AttentionKernel::kFlash);
  CHECK(on_gpu({}) == AttentionKernel::kEfficient);
  CHECK(on_gpu({.d = 18, .value_d = 18}) == AttentionKernel::kMath);
  CHECK(on_gpu({.dtype = at::kDouble}) == AttentionKernel::kMath);
  CHECK(on_gpu({.dtype = at::kBFloat16, .key_heads = 2}) == AttentionKernel::kMath);
  const auto sharing = [](AttentionArguments& a) { a.shares_heads = true; };
  CHECK(on_gpu({.dtype = at::kBFloat16, .key_heads = 2}, sharing) == AttentionKernel::kCudnn);
  CHECK(on_gpu({.key_heads = 2}, sharing) == AttentionKernel::kMath);
  CHECK(on_gpu(half, [](auto& a) {
          a.query = a.query.transpose(2, 3).contiguous().transpose(2, 3);
        }) == AttentionKernel::kMath);
}
