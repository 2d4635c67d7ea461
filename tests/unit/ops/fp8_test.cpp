// SPDX-License-Identifier: MIT
// Products in 8 bits against codes and sums that are computed here in fp64.
#include "lib/ops/fp8.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "tests/support/test.hpp"

using namespace tessera;
using ops::Fp8Matrix;

namespace {

struct Format {
  at::ScalarType dtype;
  int mantissa, least_exponent;
  double largest;
};
constexpr Format kE4m3{at::kFloat8_e4m3fn, 3, -6, 448}, kE5m2{at::kFloat8_e5m2, 2, -14, 57344};

// The nearest number of the format; of two the one with an even mantissa.
double rounded(double x, const Format& format) {
  if (x == 0) return 0;
  const int exponent = std::max(std::ilogb(x), format.least_exponent);
  const double step = std::ldexp(1.0, exponent - format.mantissa);
  return std::nearbyint(x / step) * step;
}

at::Tensor scales_of(const at::Tensor& x, const Format& format, Fp8 scaling) {
  const at::Tensor largest = scaling == Fp8::kRowwise ? x.abs().amax(1, true) : x.abs().max();
  return largest.to(at::kFloat).view({-1, 1}) / format.largest;
}

at::Tensor codes_of(const at::Tensor& x, const Format& format, Fp8 scaling) {
  at::Tensor scaled = (x.to(at::kFloat) / scales_of(x, format, scaling)).to(at::kDouble);
  scaled = scaled.contiguous();
  double* const values = scaled.data_ptr<double>();
  for (int64_t i = 0; i < scaled.numel(); ++i) values[i] = rounded(values[i], format);
  return scaled;
}

at::Tensor decoded(const Fp8Matrix& x) { return x.codes.to(at::kDouble) * x.scale.to(at::kDouble); }

// Signal to noise in dB.
double snr(const at::Tensor& value, const at::Tensor& truth) {
  const at::Tensor noise = value.to(at::kDouble) - truth;
  return 10 * std::log10(truth.square().sum().item<double>() / noise.square().sum().item<double>());
}

at::Tensor drawn(at::IntArrayRef shape, uint64_t seed) {
  at::manual_seed(seed);
  return at::randn(shape);
}

constexpr Fp8 kScalings[] = {Fp8::kTensorwise, Fp8::kRowwise};

}  // namespace

TEST_CASE("8-bit matrices have the nearest codes and the scale of their largest magnitude") {
  for (const Format& format : {kE4m3, kE5m2}) {
    for (const Fp8 scaling : kScalings) {
      // Magnitudes over many powers of two, so that small codes are subnormal.
      const at::Tensor x = drawn({37, 50}, 1) * at::exp(drawn({37, 50}, 2) * 4);
      const Fp8Matrix made = ops::fp8_matrix(x, format.dtype, scaling);
      CHECK(made.codes.scalar_type() == format.dtype);
      CHECK(at::equal(made.codes.to(at::kDouble), codes_of(x, format, scaling)));
      CHECK(at::equal(made.scale, scales_of(x, format, scaling)));
      const at::Tensor largest = made.codes.to(at::kFloat).abs().amax(1);
      CHECK(largest.max().item<double>() == format.largest);
      if (scaling == Fp8::kRowwise) CHECK(largest.min().item<double>() == format.largest);
      const at::Tensor turned = x.t();
      const Fp8Matrix of_turned = ops::fp8_matrix(turned, format.dtype, scaling);
      CHECK(at::equal(of_turned.codes.to(at::kDouble), codes_of(turned, format, scaling)));
      CHECK(of_turned.codes.is_contiguous());
    }
  }
}

TEST_CASE("both layouts of a matrix have its codes, the transpose's rows end in zeros") {
  for (const auto& [rows, columns] : {std::pair{5, 8}, {16, 7}, {33, 24}}) {
    const at::Tensor x = drawn({rows, columns}, 1);
    const at::Tensor largest = ops::fp8_largest(x, Fp8::kTensorwise);
    const Fp8Matrix expected = ops::fp8_matrix(x, kE4m3.dtype, Fp8::kTensorwise);
    const ops::Fp8Layouts made = ops::fp8_layouts(x, largest, kE4m3.dtype);
    CHECK(at::equal(decoded(made.rows), decoded(expected)));
    const at::Tensor turned = decoded(made.columns);
    const int64_t inner = turned.size(1);
    CHECK(inner % 16 == 0);
    CHECK(at::equal(turned.narrow(1, 0, rows), decoded(expected).t()));
    CHECK_FALSE(turned.narrow(1, rows, inner - rows).any().item<bool>());
    CHECK(made.columns.codes.is_contiguous());
    CHECK_FALSE(ops::fp8_layouts(x, largest, kE4m3.dtype, {.rows = false}).rows.defined());
    CHECK_FALSE(ops::fp8_layouts(x, largest, kE4m3.dtype, {.columns = false}).columns.defined());
  }
  const at::Tensor x = drawn({4, 8}, 1);
  CHECK_THROWS(ops::fp8_layouts(x, ops::fp8_largest(x, Fp8::kRowwise), kE4m3.dtype));
}

// Tokens, outputs and inputs that are and are not multiples of 16.
TEST_CASE("the three products of a layer in 8 bits: fp64 sums of their codes, 20 dB beside fp32") {
  for (const auto& [tokens, out, in] : {std::tuple{64, 48, 32}, {19, 40, 33}, {1, 16, 16}}) {
    for (const Fp8 scaling : kScalings) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        const at::Tensor x = drawn({tokens, in}, 3).to(dtype),
                         w = drawn({out, in}, 4).to(dtype) / 32,
                         dy = drawn({tokens, out}, 5).to(dtype) * 1e-6;
        const auto check_product = [&](const at::Tensor& left, const Format& of_left,
                                       const at::Tensor& right) {
          const Fp8Matrix a = ops::fp8_matrix(left, of_left.dtype, scaling),
                          b = ops::fp8_matrix(right, kE4m3.dtype, scaling);
          const at::Tensor product = ops::fp8_product(a, b, at::kFloat);
          const at::Tensor oracle = decoded(a).mm(decoded(b).t());
          CHECK(snr(product, oracle) > 110);
          CHECK(at::equal(ops::fp8_product(a, b, at::kBFloat16), product.to(at::kBFloat16)));
          CHECK(snr(product, left.to(at::kDouble).mm(right.to(at::kDouble).t())) > 20);
        };
        check_product(x, kE4m3, w);
        check_product(dy, kE5m2, w.t());
        check_product(dy.t(), kE5m2, x.t());
      }
    }
  }
}

TEST_CASE("terms join a product in 8 bits before its rounding") {
  const Fp8Matrix left = ops::fp8_matrix(drawn({6, 16}, 1), kE4m3.dtype, Fp8::kRowwise),
                  right = ops::fp8_matrix(drawn({5, 16}, 2), kE4m3.dtype, Fp8::kRowwise);
  const at::Tensor bias = drawn({5}, 3), residual = drawn({6, 5}, 4), before = drawn({6, 5}, 5);
  const at::Tensor sum = decoded(left).mm(decoded(right).t()) + bias + residual;
  const ops::Fp8Terms both{.bias = bias, .residual = residual};
  const at::Tensor half = ops::fp8_product(left, right, at::kBFloat16, both);
  CHECK((half.to(at::kDouble) - sum).abs().le(sum.abs() * 0x1.01p-8 + 1e-6).all().item<bool>());
  for (const bool add : {false, true}) {
    for (const bool turned : {false, true}) {
      ops::Fp8Terms terms = both;
      terms.result = turned ? before.t().contiguous().t() : before.clone();
      terms.add = add;
      const at::Tensor given = ops::fp8_product(left, right, at::kBFloat16, terms);
      CHECK(given.is_same(terms.result));
      CHECK(snr(given, add ? sum + before.to(at::kDouble) : sum) > 110);
    }
  }
}

TEST_CASE("rows with scales of their own keep small rows beside large ones") {
  const at::Tensor x = drawn({8, 32}, 1) * at::pow(10.0, at::arange(8).neg()).view({8, 1});
  const at::Tensor small = x.narrow(0, 7, 1).to(at::kDouble);
  const auto of_small = [&](Fp8 scaling) {
    return snr(decoded(ops::fp8_matrix(x, kE4m3.dtype, scaling)).narrow(0, 7, 1), small);
  };
  CHECK(of_small(Fp8::kRowwise) > 25);
  CHECK(of_small(Fp8::kTensorwise) < 1);
}

TEST_CASE("8-bit matrices of zeros, extremes, NaN and infinity") {
  const auto ones = at::ones({4, 16});
  const Fp8Matrix right = ops::fp8_matrix(ones, kE4m3.dtype, Fp8::kTensorwise);
  for (const Fp8 scaling : kScalings) {
    for (const Format& format : {kE4m3, kE5m2}) {
      const auto matrix = [&](const at::Tensor& x) {
        return ops::fp8_matrix(x, format.dtype, scaling);
      };
      const Fp8Matrix zeros = matrix(at::zeros({3, 16}));
      CHECK(at::equal(zeros.scale, at::ones_like(zeros.scale)));
      CHECK(at::equal(decoded(zeros), at::zeros({3, 16}, at::kDouble)));
      CHECK(ops::fp8_product(zeros, right, at::kFloat).eq(0).all().item<bool>());
      CHECK(matrix(at::zeros({0, 16})).codes.numel() == 0);

      // Largest magnitudes for which the quotient rounds up stay finite.
      for (float largest = 1; largest < 2; largest += 0.001F) {
        const Fp8Matrix one = matrix(at::full({1, 1}, largest));
        CHECK(one.codes.to(at::kDouble).item<double>() == format.largest);
      }
      for (const float extreme : {std::numeric_limits<float>::max(), 1e-30F}) {
        const at::Tensor x = at::full({2, 16}, extreme);
        CHECK(snr(decoded(matrix(x)), x.to(at::kDouble)) > 60);
      }
      const at::Tensor tiny = at::full({2, 16}, std::numeric_limits<float>::denorm_min());
      CHECK(matrix(tiny).scale.min().item<float>() >= std::numeric_limits<float>::min());
      CHECK(decoded(matrix(tiny)).isfinite().all().item<bool>());

      for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
        at::Tensor x = at::ones({3, 16});
        x[1][2] = bad;
        const at::Tensor product = ops::fp8_product(matrix(x), right, at::kFloat);
        CHECK(product[1].isnan().all().item<bool>());
        // Other rows share only a matrix's scale.
        CHECK(product[0].isnan().all().item<bool>() == (scaling == Fp8::kTensorwise));
      }
    }
  }
}

TEST_CASE("ranks that share a matrix agree on its scale") {
  const at::Tensor x = drawn({6, 16}, 1);
  const at::Tensor left = x.narrow(1, 0, 8), right = x.narrow(1, 8, 8);
  for (const Fp8 scaling : kScalings) {
    const auto part = [&](const at::Tensor& own, const at::Tensor& other) {
      const at::Tensor largest =
          at::maximum(ops::fp8_largest(own, scaling), ops::fp8_largest(other, scaling));
      return ops::fp8_cast(own, largest, kE4m3.dtype);
    };
    const Fp8Matrix whole = ops::fp8_matrix(x, kE4m3.dtype, scaling);
    CHECK(at::equal(at::cat({decoded(part(left, right)), decoded(part(right, left))}, 1),
                    decoded(whole)));
  }
}

TEST_CASE("a copy of a weight is made once for each direction") {
  ops::Fp8Weights copies;
  int made = 0;
  const int first = 0, second = 0;
  const auto make = [&] {
    ++made;
    return ops::fp8_matrix(at::full({1, 16}, static_cast<float>(made)), kE4m3.dtype,
                           Fp8::kTensorwise);
  };
  const double value = decoded(copies.copy_of(&first, false, make))[0][0].item<double>();
  CHECK(decoded(copies.copy_of(&first, false, make))[0][0].item<double>() == value);
  CHECK(made == 1);
  copies.copy_of(&first, true, make);
  copies.copy_of(&second, false, make);
  CHECK(made == 3);
}

TEST_CASE("the transpose of codes has the same codes, and zeros up to 16") {
  const at::Tensor x = at::randn({19, 24});
  const ops::Fp8Matrix rows = ops::fp8_matrix(x, at::kFloat8_e4m3fn, Fp8::kTensorwise),
                       turned = ops::fp8_turned(rows);
  REQUIRE(turned.codes.sizes() == at::IntArrayRef({24, 32}));
  CHECK(turned.codes.is_contiguous());
  const at::Tensor bytes = turned.codes.view(at::kByte);
  CHECK(bytes.narrow(1, 0, 19).equal(rows.codes.view(at::kByte).t()));
  CHECK(bytes.narrow(1, 19, 13).eq(0).all().item<bool>());
  CHECK(turned.scale.equal(rows.scale));
}
