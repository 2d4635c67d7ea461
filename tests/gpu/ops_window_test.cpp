// SPDX-License-Identifier: MIT
// Windowed attention and head norms on the GPU against the fp64 reference.
#include <cmath>

#include "lib/ops/reference.h"
#include "tessera/ops/kernels.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/models/decoder_cases.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

double tolerance(at::ScalarType type) { return type == at::kBFloat16 ? 1e-2 : 2e-3; }

void check_window(const ops::SelfAttention& attention, int64_t sequence, int64_t d,
                  at::ScalarType type, const PackedRows& packed = {}) {
  INFO("sequence " << sequence << " heads " << attention.heads << " of " << attention.key_heads
                   << " keys, d " << d << " window " << attention.window << " "
                   << at::toString(type) << (packed.defined() ? " packed" : ""));
  const int64_t batch = packed.defined() ? packed.positions.size(0) : 2;
  const int64_t columns = (attention.heads + 2 * attention.key_heads) * d;
  const at::Tensor qkv = at::randn({batch, sequence, columns}, kOnGpu).to(type);
  const at::Tensor gradient = at::randn({batch, sequence, attention.heads * d}, kOnGpu).to(type);
  const auto mine = ops::attention_forward(qkv, attention, {}, packed);
  const at::Tensor dqkv = ops::attention_backward(gradient, qkv, attention, {}, mine, packed);
  const at::Tensor exact = qkv.to(at::kDouble);
  const auto expected = ops::reference::attention_forward(exact, attention, {}, packed);
  const at::Tensor dexpected = ops::reference::attention_backward(gradient.to(at::kDouble), exact,
                                                                  attention, {}, expected, packed);
  CHECK(relative_error(mine.output, expected.output) < tolerance(type));
  CHECK(relative_error(dqkv, dexpected) < tolerance(type));
}

}  // namespace

TEST_CASE("attention in a window on the GPU, whole sequences and packed rows") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(71);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const auto& [heads, key_heads, d] : {std::tuple{8, 8, 64}, {8, 2, 64}, {4, 2, 128}}) {
      for (const int64_t window : {1, 7, 64, 100, 511, 600}) {
        const ops::SelfAttention attention{.heads = heads,
                                           .key_heads = key_heads,
                                           .scale = 1 / std::sqrt(double(d)),
                                           .window = window};
        check_window(attention, 512, d, type);
        check_window(attention, 130, d, type);
        const std::vector<int64_t> lengths{100, 1, 29, 64, 66};
        check_window(attention, 130, d, type, packed_on(at::kCUDA, lengths, 130));
      }
    }
  }
}

TEST_CASE("norms of heads on the GPU") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(72);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const int64_t d : {8, 24, 64, 80, 128, 256}) {
      for (const auto& [batch, sequence] : {std::pair{1, 1}, {3, 130}, {2, 700}}) {
        INFO("d " << d << " tokens " << batch * sequence << " " << at::toString(type));
        const ops::SelfAttention attention{.heads = 6, .key_heads = 2};
        const at::Tensor qkv = at::randn({batch, sequence, 10 * d}, kOnGpu).to(type);
        const at::Tensor gradient = at::randn({batch, sequence, 10 * d}, kOnGpu).to(type);
        const auto run = [&](at::ScalarType as) {
          const ops::HeadNorms norms{(at::linspace(0.5, 1.5, d, kOnGpu)).to(type).to(as),
                                     (at::linspace(1.2, 0.3, d, kOnGpu)).to(type).to(as), 1e-6};
          const at::Tensor x = qkv.to(as, false, /*copy=*/true),
                           dx = gradient.to(as, false, /*copy=*/true);
          const auto input = ops::head_norm_(x, attention, norms);
          const at::Tensor dq = at::zeros({d}, kOnGpu.dtype(as)), dk = at::zeros_like(dq);
          ops::ColumnSums sums;
          ops::head_norm_backward_(dx, attention, norms, input, dq, dk, sums);
          ops::add_column_sums(sums);
          return Tensors{x, dx, dq, dk};
        };
        const Tensors mine = run(type), expected = run(at::kDouble);
        for (size_t i = 0; i < mine.size(); ++i) {
          INFO("result " << i);
          CHECK(relative_error(mine[i], expected[i]) < tolerance(type));
        }
      }
    }
  }
}

TEST_CASE("one new token on the GPU sees the window's keys alone") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(73);
  const at::Tensor lengths = at::tensor({0, 1, 15, 16, 63, 500, 1023}, at::kLong);
  for (const int64_t window : {1, 16, 200, 2000}) {
    CAPTURE(window);
    const auto drawn = [&](at::IntArrayRef shape) { return at::randn(shape).to(at::kBFloat16); };
    const at::Tensor q = drawn({7, 1, 8, 64}), k = drawn({7, 1, 2, 64}), v = drawn({7, 1, 2, 64});
    const at::Tensor keys = drawn({7, 1024, 2, 64}), values = drawn({7, 1024, 2, 64});
    const auto attend = [&](const auto& moved) {
      return ops::attention_to_cache(
          moved(q), moved(k), moved(v),
          {moved(keys), moved(values), moved(q).is_cuda() ? lengths.cuda() : lengths},
          {.scale = 0.2, .window = window});
    };
    const at::Tensor expected = attend([](const at::Tensor& x) { return x.to(at::kDouble); });
    const at::Tensor actual = attend([](const at::Tensor& x) { return x.cuda(); });
    CHECK(relative_error(actual, expected) < 6e-3);
  }
}

TEST_CASE("the fused blocks of Qwen, and with adapters, on the GPU agree with the composed ones") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(74);
  const DecoderSizes sizes{.hidden = 256, .heads = 4, .key_heads = 2, .d = 64, .inner = 384};
  for (DecoderCase test : {qwen_case(sizes), with_adapters(llama_case(sizes, false)),
                           with_adapters(gpt2_case(sizes)), with_adapters(qwen_case(sizes))}) {
    INFO(test.name);
    test.options.attention.window = test.name.starts_with("Qwen") ? 40 : 0;
    const auto run = [&](Version version, at::ScalarType type) {
      at::manual_seed(75);
      DecoderCase here = test;
      Tensors leaves;
      for (const at::Tensor& w : test.tensors()) {
        leaves.push_back(leaf(w.to(at::kBFloat16).to(at::kCUDA, type)));
        leaves.back().mutable_grad() = at::zeros_like(leaves.back());
      }
      if (here.options.rotary.cos.defined()) {
        here.options.rotary =
            ops::rotary_tables(ops::rotary_frequencies(sizes.d, {.theta = 100}).to(at::kCUDA), 128);
      }
      const at::Tensor hidden =
          leaf(at::randn({3, 128, sizes.hidden}, kOnGpu).to(at::kBFloat16).to(type));
      const at::Tensor output =
          run_decoder(version, hidden, here.with(leaves), here.options, {3, 128});
      const at::Tensor gradient = at::linspace(-1, 1, output.numel(), kOnGpu).to(at::kBFloat16);
      torch::autograd::backward({output}, {gradient.to(type).view_as(output)});
      Tensors results{output, hidden.grad()};
      for (const at::Tensor& w : leaves) results.push_back(w.grad());
      return results;
    };
    const Tensors mine = run(Version::kFused, at::kBFloat16);
    const Tensors exact = run(Version::kComposed, at::kDouble);
    for (size_t i = 0; i < mine.size(); ++i) {
      INFO("result " << i);
      CHECK(relative_error(mine[i], exact[i]) < 4e-2);
    }
  }
}
