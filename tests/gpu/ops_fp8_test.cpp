// SPDX-License-Identifier: MIT
// Products in 8 bits on the GPU against the emulation: the same codes and scales, the same products
// up to the roundings of their dtype.
#include <cmath>

#include "lib/ops/fp8.h"
#include "lib/ops/fp8_codes.h"
#include "lib/ops/reference.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/models/decoder_cases.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr Fp8 kFp8Scalings[] = {Fp8::kTensorwise, Fp8::kRowwise};

ops::Fp8Matrix codes_on_cpu(const ops::Fp8Matrix& x) { return {x.codes.cpu(), x.scale.cpu()}; }

}  // namespace

TEST_CASE("the GPU casts to the emulation's codes and scales") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(1);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    const at::Tensor x =
        (at::randn({130, 72}) * at::exp(at::randn({130, 72}) * 2)).to(type).contiguous();
    for (const Fp8 scaling : kFp8Scalings) {
      for (const at::ScalarType dtype : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
        for (const bool turned : {false, true}) {
          const auto of = [&](const at::Tensor& given) {
            return ops::fp8_matrix(turned ? given.t() : given, dtype, scaling);
          };
          const ops::Fp8Matrix here = codes_on_cpu(of(x.cuda())), expected = of(x);
          INFO(at::toString(type) << " to " << at::toString(dtype) << " scaling " << int(scaling)
                                  << " turned " << turned);
          CHECK(at::equal(here.scale, expected.scale));
          CHECK(at::equal(here.codes.view(at::kByte), expected.codes.view(at::kByte)));
        }
      }
    }
  }
}

// What ranks of zero3 and fsdp do with their shards (lib/sharding/gathered_codes.cpp).
TEST_CASE("the GPU casts parts of a matrix to the codes of the whole one") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(9);
  constexpr auto kCodes = at::kFloat8_e4m3fn;
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const float factor : {1.0F, 1e-30F}) {
      at::Tensor x = at::randn({72, 130}) * factor;
      x.narrow(0, 0, 36).mul_(0x1p-14);
      const at::Tensor whole = x.to(type);
      const ops::Fp8Matrix expected = ops::fp8_matrix(whole, kCodes, Fp8::kTensorwise);
      const at::Tensor flat = whole.cuda().view({1, -1});
      for (const int64_t first : {64, 4096, 9300}) {
        const at::Tensor parts[] = {flat.narrow(1, 0, first),
                                    flat.narrow(1, first, flat.numel() - first)};
        const at::Tensor largest = at::maximum(ops::fp8_largest(parts[0], Fp8::kTensorwise),
                                               ops::fp8_largest(parts[1], Fp8::kTensorwise));
        INFO(at::toString(type) << " first part of " << first);
        std::vector<at::Tensor> codes;
        for (const at::Tensor& part : parts) {
          const ops::Fp8Matrix of = codes_on_cpu(ops::fp8_cast(part, largest, kCodes));
          CHECK(at::equal(of.scale, expected.scale));
          codes.push_back(of.codes.view(at::kByte));
        }
        const at::Tensor zeros = at::zeros({3, 16}, flat.options().dtype(at::kFloat));
        const ops::Fp8Matrix scales = ops::fp8_cast(zeros, largest.expand({3, 1}).clone(), kCodes);
        CHECK(at::equal(scales.scale.cpu(), expected.scale.expand({3, 1})));
        CHECK(at::equal(at::cat(codes, 1).view({72, 130}), expected.codes.view(at::kByte)));
      }
    }
  }
}

TEST_CASE("the GPU turns and decodes codes as the emulation does, bit for bit") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(8);
  for (const auto& [rows, columns] :
       {std::pair{128, 128}, {130, 72}, {1, 8}, {17, 264}, {300, 1000}, {5, 7}}) {
    const ops::Fp8Matrix codes =
        ops::fp8_matrix(at::randn({rows, columns}) * at::exp(at::randn({rows, columns}) * 2),
                        at::kFloat8_e4m3fn, Fp8::kTensorwise);
    const ops::Fp8Matrix there{codes.codes.cuda(), codes.scale.cuda()};
    const ops::Fp8Matrix turned = codes_on_cpu(ops::fp8_turned(there));
    INFO(rows << " x " << columns);
    CHECK(at::equal(turned.codes.view(at::kByte), ops::fp8_turned(codes).codes.view(at::kByte)));
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
      const at::Tensor expected = at::empty({rows, columns}, type), values = expected.cuda();
      ops::fp8_decode(codes, expected);
      ops::fp8_decode(there, values);
      INFO(at::toString(type));
      CHECK(at::equal(values.cpu(), expected));
    }
  }
}

// Tiles that are whole and cut; scales too small for a reciprocal.
TEST_CASE("the GPU makes both layouts of a matrix in 8 bits as the emulation does") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(6);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const auto& [rows, columns] :
         {std::pair{128, 128}, {130, 72}, {1, 8}, {17, 264}, {300, 1000}}) {
      for (const float factor : {1.0F, 1e-30F}) {
        const at::Tensor x =
            (at::randn({rows, columns}) * at::exp(at::randn({rows, columns}) * 2) * factor)
                .to(type);
        for (const at::ScalarType dtype : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
          for (const ops::WantedLayouts wanted :
               {ops::WantedLayouts{}, {.columns = false}, {.rows = false}}) {
            const auto made = [&](const at::Tensor& given) {
              return ops::fp8_layouts(given, ops::fp8_largest(given, Fp8::kTensorwise), dtype,
                                      wanted);
            };
            const ops::Fp8Layouts here = made(x.cuda()), expected = made(x);
            INFO(at::toString(type) << " to " << at::toString(dtype) << " " << rows << " x "
                                    << columns << " factor " << factor);
            const auto check = [](const ops::Fp8Matrix& one, const ops::Fp8Matrix& other) {
              REQUIRE(one.defined() == other.defined());
              if (!one.defined()) return;
              CHECK(at::equal(one.scale.cpu(), other.scale));
              CHECK(at::equal(one.codes.cpu().view(at::kByte), other.codes.view(at::kByte)));
            };
            check(here.rows, expected.rows);
            check(here.columns, expected.columns);
          }
        }
      }
    }
  }
}

// One row and many blocks, rows of one warp and of eight, rows that end inside a block.
TEST_CASE("kernels leave the largest magnitude of what they write") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(8);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const auto& [rows, n] :
         {std::pair{1, 64}, {3, 128}, {130, 1088}, {5000, 2560}, {257, 5120}}) {
      for (const char* const what : {"numbers", "an infinity", "a NaN"}) {
        const auto input = [&](int64_t columns) {
          const at::Tensor x = at::randn({rows, columns}, at::kCUDA).to(type);
          const std::string has = what;
          if (has != "numbers") x[rows / 2][columns / 3] = has == "a NaN" ? NAN : INFINITY;
          return x;
        };
        const auto check = [&](const char* name, const at::Tensor& result,
                               const at::Tensor& largest) {
          INFO(name << " " << at::toString(type) << " " << rows << " x " << n << " with " << what);
          const at::Tensor expected = ops::fp8_largest(result, Fp8::kTensorwise);
          CHECK(at::allclose(largest, expected, 0, 0, /*equal_nan=*/true));
        };
        const at::Tensor x = input(n), both = input(2 * n), weight = at::randn({n}, x.options()),
                         bias = at::randn({n}, x.options());
        at::Tensor largest;
        check("gelu", ops::gelu_tanh_forward(x, &largest), largest);
        check("swiglu", ops::swiglu_forward(both, &largest), largest);
        const ops::LayerNormOutput norm =
            ops::layer_norm_forward(x, weight, bias, 1e-5, {}, &largest);
        check("layer norm", norm.output, largest);
        const ops::RmsNormOutput rms = ops::rms_norm_forward(x, weight, 1e-5, {}, &largest);
        check("rms norm", rms.output, largest);
        const at::Tensor gradient = at::randn({rows, n}, x.options());
        ops::ColumnSums sums;
        check("swiglu's gradient", ops::swiglu_backward_(gradient.clone(), both, nullptr, &largest),
              largest);
        const at::Tensor dx = gradient.clone();
        ops::gelu_tanh_backward_(dx, x, bias.clone(), sums, nullptr, &largest);
        check("gelu's gradient", dx, largest);
        const ops::LayerNormGradients wanted{.largest = &largest};
        check("layer norm's gradient",
              ops::norm_backward(gradient, {x, norm.mean, norm.rstd, weight, bias}, gradient,
                                 wanted, sums),
              largest);
        check("rms norm's gradient",
              ops::norm_backward(gradient, {x, {}, rms.rstd, weight, {}}, {}, wanted, sums),
              largest);
        ops::add_column_sums(sums);
      }
    }
  }
}

// Outputs of 40 are no multiple of 16: emulated. Tokens and inputs may be any number.
TEST_CASE("the GPU multiplies 8-bit matrices as the emulation does") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(2);
  for (const auto& [rows, columns, inner] :
       {std::tuple{256, 128, 512}, {19, 48, 33}, {1, 16, 16}, {64, 40, 64}, {17, 32, 1000}}) {
    for (const Fp8 scaling : kFp8Scalings) {
      for (const at::ScalarType of_left : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
        const auto left = ops::fp8_matrix(at::randn({rows, inner}, at::kCUDA), of_left, scaling);
        const auto right =
            ops::fp8_matrix(at::randn({columns, inner}, at::kCUDA), at::kFloat8_e4m3fn, scaling);
        for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
          INFO(rows << " x " << columns << " x " << inner << " " << at::toString(of_left) << " to "
                    << at::toString(dtype) << " scaling " << int(scaling));
          const at::Tensor product = ops::fp8_product(left, right, dtype);
          CHECK(product.scalar_type() == dtype);
          const bool through_bf16 = scaling == Fp8::kRowwise || dtype == at::kBFloat16;
          const double tolerance = through_bf16 ? 4e-3 : dtype == at::kHalf ? 5e-4 : 3e-4;
          const at::Tensor expected =
              ops::reference::fp8_product(codes_on_cpu(left), codes_on_cpu(right), at::kFloat);
          CHECK(relative_error(product, expected) < tolerance);
        }
      }
    }
  }
}

// The longest sums of the models' forward products.
TEST_CASE("the GPU takes scales that lie anywhere in a tensor") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(9);
  const auto made = [](int64_t rows) {
    return ops::fp8_matrix(at::randn({rows, 64}, at::kCUDA), at::kFloat8_e4m3fn, Fp8::kTensorwise);
  };
  const ops::Fp8Matrix left = made(32), right = made(48);
  const at::Tensor scales = at::zeros({4}, right.scale.options());
  scales.narrow(0, 2, 1).copy_(right.scale.view(-1));
  const ops::Fp8Matrix inside{right.codes, scales[2].view({1, 1})};
  CHECK(at::equal(ops::fp8_product(left, inside, at::kBFloat16),
                  ops::fp8_product(left, right, at::kBFloat16)));
}

TEST_CASE("forward products in 8 bits on the GPU are 20 dB beside fp32") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(7);
  for (const int64_t inner : {2048, 14336}) {
    const at::Tensor x = at::randn({512, inner}, at::kCUDA),
                     w = at::randn({256, inner}, at::kCUDA) * 0.02;
    for (const Fp8 scaling : kFp8Scalings) {
      const at::Tensor y =
          ops::fp8_product(ops::fp8_matrix(x, at::kFloat8_e4m3fn, scaling),
                           ops::fp8_matrix(w, at::kFloat8_e4m3fn, scaling), at::kFloat);
      CHECK(relative_error(y, x.to(at::kDouble).mm(w.to(at::kDouble).t())) < 0.1);
    }
  }
}

TEST_CASE("the GPU adds terms to products of 8-bit matrices") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(5);
  for (const Fp8 scaling : kFp8Scalings) {
    const auto left = ops::fp8_matrix(at::randn({48, 64}, at::kCUDA), at::kFloat8_e5m2, scaling);
    const auto right = ops::fp8_matrix(at::randn({32, 64}, at::kCUDA), at::kFloat8_e4m3fn, scaling);
    for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
      const auto draw = [&](at::IntArrayRef shape) {
        return at::randn(shape, at::TensorOptions(at::kCUDA).dtype(type));
      };
      const ops::Fp8Terms both{.bias = draw({32}), .residual = draw({48, 32})};
      const auto expected = [&](const at::Tensor& more) {
        const at::Tensor product =
            ops::reference::fp8_product(codes_on_cpu(left), codes_on_cpu(right), at::kFloat);
        return more.defined() ? product + more.cpu() : product;
      };
      CHECK(relative_error(ops::fp8_product(left, right, type, both),
                           expected(both.bias + both.residual)) < 1e-2);
      for (const bool add : {false, true}) {
        for (const bool turned : {false, true}) {
          const at::Tensor before = draw({48, 32});
          ops::Fp8Terms terms{.result = turned ? before.t().contiguous().t() : before.clone(),
                              .add = add};
          ops::fp8_product(left, right, type, terms);
          INFO(at::toString(type) << " add " << add << " turned " << turned << " scaling "
                                  << int(scaling));
          CHECK(relative_error(terms.result, expected(add ? before : at::Tensor())) < 1e-2);
        }
      }
    }
  }
}

// A flipped code moves single values by 6 to 12 %.
TEST_CASE("decoder blocks in 8 bits on the GPU are the CPU's") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(3);
  const DecoderSizes sizes{.hidden = 64, .heads = 4, .key_heads = 2, .d = 16, .inner = 96};
  for (DecoderCase test : decoder_cases(sizes)) {
    if (test.options.adapters.dropout > 0) continue;
    for (const Fp8 scaling : kFp8Scalings) {
      test.options.fp8 = scaling;
      const auto run = [&](at::Device device, at::ScalarType type, Version version) {
        const auto to = [&](const at::Tensor& x, at::ScalarType as) {
          return x.defined() ? x.to(device, as, false, true) : x;
        };
        Tensors weights;
        for (const at::Tensor& w : test.tensors()) weights.push_back(leaf(to(w, type)));
        DecoderBlockOptions options = test.options;
        options.rotary.cos = to(options.rotary.cos, at::kFloat);
        options.rotary.sin = to(options.rotary.sin, at::kFloat);
        at::manual_seed(4);
        const at::Tensor input = leaf(to(at::randn({2, 13, sizes.hidden}), type));
        const at::Tensor output = run_decoder(version, input, test.with(weights), options, {});
        torch::autograd::backward({output}, {to(at::ones(output.sizes()), type)});
        Tensors results{output.detach(), input.grad()};
        for (const at::Tensor& w : weights) results.push_back(w.grad());
        return results;
      };
      const Tensors expected = run(at::kCPU, at::kFloat, Version::kComposed);
      // What bf16 does to the emulation: many values lie near the border of two codes.
      const Tensors rounded = run(at::kCPU, at::kBFloat16, Version::kFused);
      const Tensors results = run(at::kCUDA, at::kBFloat16, Version::kFused);
      for (size_t i = 0; i < results.size(); ++i) {
        INFO(test.name << " scaling " << int(scaling) << " result " << i);
        const double noise = relative_error(rounded[i], expected[i]);
        CHECK(noise < 0.2);
        CHECK(relative_error(results[i], expected[i]) < 0.02 + 1.5 * noise);
      }
    }
  }
}
