// SPDX-License-Identifier: MIT

#include <array>

#include "tessera/ops/functional.h"
#include "tests/gpu/allocator.h"
#include "tests/gpu/gpu.h"
#include "tests/support/bloom_block.h"
#include "tests/unit/models/decoder_cases.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

Tensors make_weights(int64_t h, at::ScalarType type) {
  const auto matrix = [](int64_t out, int64_t in) {
    return at::randn({out, in}, kOnGpu) / std::sqrt(double(in));
  };
  const auto vector = [](int64_t n, double centre) {
    return centre + 0.3 * at::randn({n}, kOnGpu);
  };
  Tensors list{vector(h, 1),     vector(h, 0),     matrix(3 * h, h), vector(3 * h, 0),
               matrix(h, h),     vector(h, 0),     vector(h, 1),     vector(h, 0),
               matrix(4 * h, h), vector(4 * h, 0), matrix(h, 4 * h), vector(h, 0)};
  for (at::Tensor& x : list) {
    x = leaf(x.to(type));
    x.mutable_grad() = at::zeros_like(x);
  }
  return list;
}

template <typename Version>
at::Tensor run(Version version, const at::Tensor& input, const Tensors& weights, int64_t heads,
               const at::Tensor& mask, bool post, const BloomBlockTraining& dropout = {}) {
  const at::Tensor slopes = ops::alibi_slopes(heads).to(at::kCUDA);
  const at::Tensor output =
      version(input, bloom_weights(weights), slopes, mask, 1e-5, post, {}, {}, {}, dropout);
  // bf16 and fp64 get identical incoming gradients.
  const at::Tensor gradient = at::linspace(-1, 1, output.numel(), kOnGpu).to(at::kBFloat16);
  torch::autograd::backward({output}, {gradient.to(output.scalar_type()).view_as(output)});
  return output.detach();
}

void compare(int64_t h, int64_t heads, at::ScalarType type, const at::Tensor& mask, bool post,
             const BloomBlockTraining& dropout = {}) {
  INFO("h " << h << " heads " << heads << " type " << at::toString(type)
            << (mask.defined() ? " masked" : "") << (post ? " post" : ""));
  const Tensors weights = make_weights(h, type);
  Tensors exact;
  for (const at::Tensor& w : weights) exact.push_back(leaf(w.to(at::kDouble)));
  const at::Tensor input = leaf(at::randn({3, 64, h}, kOnGpu).to(type)),
                   exact_input = leaf(input.to(at::kDouble));
  const at::Tensor a = run(&bloom_block_fused, input, weights, heads, mask, post, dropout);
  const at::Tensor b = run(&bloom_block_composed, exact_input, exact, heads, mask, post, dropout);
  const double tolerance = type == at::kBFloat16 ? 2e-2 : 3e-3;
  CHECK(relative_error(a, b) < tolerance);
  CHECK(relative_error(input.grad(), exact_input.grad()) < tolerance);
  for (size_t i = 0; i < weights.size(); ++i) {
    INFO("gradient of weight " << i);
    CHECK(relative_error(weights[i].grad(), exact[i].grad()) < tolerance);
  }
}

}  // namespace

TEST_CASE("the fused BLOOM block on the GPU agrees with the composed one in fp64") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(61);
  const at::Tensor position = at::arange(64, kOnGpu).unsqueeze(0);
  const at::Tensor mask =
      position.ge(at::tensor(std::vector<int64_t>{0, 10, 33}).to(at::kCUDA).unsqueeze(1));
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    compare(1024, 16, type, {}, false);
    compare(1024, 16, type, mask, false);
    compare(2560, 32, type, {}, false);
    compare(256, 4, type, {}, true);
    compare(24, 3, type, {}, false);  // no kernel fits
    const std::array<ops::Dropout, 2> hidden{ops::Dropout{0.2, 31}, ops::Dropout{0.4, 32}};
    compare(1024, 16, type, {}, false, {{}, hidden});
    compare(1024, 16, type, {}, false, {.save_norm_outputs = true});
    compare(24, 3, type, {}, true, {{}, hidden, /*save_norm_outputs=*/true});
    compare(256, 4, type, {}, true, {{0.3, 33}, hidden});
  }
}

namespace {

// One version's run with a loss; gradients are laid out as by a strategy.
at::Tensor run_case(const DecoderCase& test, Version version, const at::Tensor& input,
                    Tensors& weights, const PackedRows& packed) {
  lay_side_by_side(weights);
  DecoderBlockOptions options = test.options;
  if (options.rotary.cos.defined()) {
    options.rotary = {options.rotary.cos.to(at::kCUDA), options.rotary.sin.to(at::kCUDA)};
  }
  if (options.routing.bias.defined()) options.routing.bias = options.routing.bias.to(at::kCUDA);
  const at::Tensor output =
      run_decoder(version, input, test.with(weights), options, {}, {}, packed);
  const at::Tensor gradient = at::linspace(-1, 1, output.numel(), kOnGpu).to(at::kBFloat16);
  torch::autograd::backward({output}, {gradient.to(output.scalar_type()).view_as(output)});
  return output.detach();
}

void compare(const DecoderCase& test, int64_t hidden, at::ScalarType type,
             const PackedRows& packed) {
  INFO(test.name << " hidden " << hidden << " type " << at::toString(type)
                 << (packed.defined() ? " packed" : ""));
  Tensors mine, exact;
  for (const at::Tensor& w : test.tensors()) {
    mine.push_back(leaf(w.to(at::kCUDA, type)));
    exact.push_back(leaf(mine.back().to(at::kDouble)));
  }
  std::vector<int64_t> shape{3, 64};
  if (packed.defined()) shape = packed.positions.sizes().vec();
  shape.push_back(hidden);
  const at::Tensor input = leaf(at::randn(shape, kOnGpu).to(type)),
                   exact_input = leaf(input.to(at::kDouble));
  const at::Tensor a = run_case(test, Version::kFused, input, mine, packed);
  const at::Tensor b = run_case(test, Version::kComposed, exact_input, exact, packed);
  const double tolerance = type == at::kBFloat16 ? 2e-2 : 3e-3;
  CHECK(relative_error(a, b) < tolerance);
  CHECK(relative_error(input.grad(), exact_input.grad()) < tolerance);
  for (size_t i = 0; i < mine.size(); ++i) {
    INFO("gradient of weight " << i);
    CHECK(relative_error(mine[i].grad() - 0.5, exact[i].grad() - 0.5) < 2 * tolerance);
  }
}

}  // namespace

TEST_CASE("the fused blocks of GPT-2 and Llama on the GPU agree with the composed ones in fp64") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(62);
  const PackedRows rows = packed_on(at::kCUDA, {30, 34, 1, 63, 20, 44}, 64);
  const PackedRows shorter = packed_on(at::kCUDA, {30, 34, 1, 63, 20, 10}, 64);
  const std::vector<DecoderSizes> all{{768, 12, 4, 64, 3072}, {512, 8, 2, 64, 1536}, {24, 3, 3, 8}};
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const DecoderSizes& sizes : all) {
      for (const DecoderCase& test : decoder_cases(sizes)) {
        compare(test, sizes.hidden, type, {});
        compare(test, sizes.hidden, type, rows);
        compare(test, sizes.hidden, type, shorter);
        compare(with_dropout(test, /*attention=*/false), sizes.hidden, type, {});
        DecoderCase kept = test;
        kept.options.save_norm_outputs = true;
        compare(kept, sizes.hidden, type, rows);
      }
    }
  }
}

// All experts are chosen: roundings choose none. Gates of a token are a product of one column.
TEST_CASE("shared experts, sigmoids and partly rotated heads on the GPU agree with fp64") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(64);
  const PackedRows rows = packed_on(at::kCUDA, {30, 34, 1, 63, 20, 44}, 64);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const DecoderSizes& sizes :
         {DecoderSizes{512, 8, 2, 64, 256}, DecoderSizes{256, 2, 2, 128, 96}}) {
      for (const PackedRows& packed : {PackedRows{}, rows}) {
        compare(shared_case(sizes, 4, 4), sizes.hidden, type, packed);
        compare(with_shared_adapters(shared_case(sizes, 3, 3)), sizes.hidden, type, packed);
      }
    }
  }
}

TEST_CASE("fused blocks on the GPU keep activations where they are asked to") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(63);
  const DecoderSizes sizes{768, 12, 4, 64, 3072};
  constexpr int64_t kTokens = 3 * 64;
  const auto allocated = [] { return test::gpu_memory().allocated_bytes[0].current; };
  for (DecoderCase test : decoder_cases(sizes)) {
    INFO(test.name);
    const at::Tensor hidden = at::randn({3, 64, sizes.hidden}, kOnGpu).to(at::kBFloat16);
    if (test.options.rotary.cos.defined()) {
      test.options.rotary = {test.options.rotary.cos.to(at::kCUDA),
                             test.options.rotary.sin.to(at::kCUDA)};
    }
    std::array<Tensors, 2> results;
    std::array<int64_t, 2> bytes{};
    for (const bool keep : {false, true}) {
      test.options.save_norm_outputs = keep;
      Tensors weights;
      for (const at::Tensor& w : test.tensors()) {
        weights.push_back(leaf(w.to(at::kCUDA, at::kBFloat16)));
      }
      lay_side_by_side(weights);
      const at::Tensor input = leaf(hidden);
      const auto forward = [&] {
        return run_decoder(Version::kFused, input, test.with(weights), test.options, {});
      };
      forward();  // makes the tables
      const int64_t before = allocated();
      const at::Tensor output = forward();
      bytes[keep ? 1 : 0] = allocated() - before;
      torch::autograd::backward({output}, {at::ones_like(output)});
      Tensors& result = results[keep ? 1 : 0];
      result = {output.detach(), input.grad()};
      for (const at::Tensor& w : weights) result.push_back(w.grad() - 0.5);
    }
    CHECK(bytes[1] - bytes[0] >= kTokens * (2 * sizes.hidden + sizes.inner) * 2);
    for (size_t i = 0; i < results[0].size(); ++i) {
      INFO("tensor " << i);
      CHECK(relative_error(results[1][i], results[0][i]) < 1e-2);
    }
  }
}

TEST_CASE("a warm fused block asks the device for no memory") {
  TESSERA_NEEDS_GPUS(1);
  const Tensors weights = make_weights(256, at::kBFloat16);
  const at::Tensor input = leaf(at::randn({2, 64, 256}, kOnGpu).to(at::kBFloat16));
  const auto segments = [] { return test::gpu_memory().segment[0].allocated; };
  for (int i = 0; i < 2; ++i) run(&bloom_block_fused, input, weights, 4, {}, false);
  const int64_t warm = segments();
  for (int i = 0; i < 3; ++i) run(&bloom_block_fused, input, weights, 4, {}, false);
  CHECK(segments() == warm);
}
