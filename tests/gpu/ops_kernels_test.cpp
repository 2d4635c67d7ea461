// SPDX-License-Identifier: MIT
#include <cmath>

#include "lib/ops/reference.h"
#include "tessera/core/lazy_zero.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

double tolerance_of(at::ScalarType type) { return type == at::kBFloat16 ? 6e-3 : 8e-4; }

at::Tensor exact(const at::Tensor& x) { return x.to(at::kDouble); }

at::Tensor draw(at::IntArrayRef shape, at::ScalarType type) {
  return at::randn(shape, kOnGpu).to(type);
}

// wide: the same norm in fp64.
void check_norm_backward(const ops::NormInput& input, const ops::NormInput& wide) {
  const at::ScalarType type = input.x.scalar_type();
  const int64_t n = input.x.size(1);
  const double tolerance = tolerance_of(type);
  const at::Tensor gradient = draw(input.x.sizes(), type);
  for (const at::Tensor& r : {draw(input.x.sizes(), type), at::Tensor()}) {
    const auto sinks = [&](at::ScalarType t) {
      return ops::LayerNormGradients{at::ones({n}, kOnGpu.dtype(t)), at::ones({n}, kOnGpu.dtype(t)),
                                     at::ones({n}, kOnGpu.dtype(t))};
    };
    auto a = sinks(type);
    const auto b = sinks(at::kDouble);
    ops::ColumnSums sums, exact_sums;
    at::Tensor output, exact_output, columns;
    a.columns = &columns;
    const at::Tensor dx = ops::norm_backward(gradient, input, r, a, sums, &output);
    ops::add_column_sums(sums);
    CHECK(sums.items.empty());
    const at::Tensor dexpected = ops::reference::norm_backward(
        exact(gradient), wide, r.defined() ? exact(r) : r, b, exact_sums, &exact_output);
    ops::reference::add_column_sums(exact_sums);
    CHECK(relative_error(dx, dexpected) < tolerance);
    CHECK(relative_error(output, exact_output) < tolerance);
    CHECK(relative_error(a.weight, b.weight) < tolerance);
    CHECK(relative_error(a.bias, b.bias) < tolerance);
    CHECK(relative_error(a.column_sum, b.column_sum) < tolerance);
    CHECK(relative_error(columns.sum(0), b.column_sum - 1) < tolerance);
  }
}

void check_layer_norm(int64_t rows, int64_t n, at::ScalarType type) {
  INFO("rows " << rows << " n " << n << " type " << at::toString(type));
  const at::Tensor x = (at::randn({rows, n}, kOnGpu) * 2 + 3).to(type);
  const at::Tensor weight = draw({n}, type), bias = draw({n}, type);
  const auto mine = ops::layer_norm_forward(x, weight, bias, 1e-5);
  const auto expected =
      ops::reference::layer_norm_forward(exact(x), exact(weight), exact(bias), 1e-5, {});
  CHECK(relative_error(mine.output, expected.output) < tolerance_of(type));
  CHECK(relative_error(mine.mean, expected.mean) < 1e-5);
  CHECK(relative_error(mine.rstd, expected.rstd) < 1e-5);
  check_norm_backward({x, mine.mean, mine.rstd, weight, bias},
                      {exact(x), expected.mean, expected.rstd, exact(weight), exact(bias)});
}

void check_rms_norm(int64_t rows, int64_t n, at::ScalarType type) {
  INFO("rows " << rows << " n " << n << " type " << at::toString(type));
  const at::Tensor x = (at::randn({rows, n}, kOnGpu) * 2 + 1).to(type), weight = draw({n}, type);
  const auto mine = ops::rms_norm_forward(x, weight, 1e-5);
  const auto expected = ops::reference::rms_norm_forward(exact(x), exact(weight), 1e-5, {});
  CHECK(relative_error(mine.output, expected.output) < tolerance_of(type));
  CHECK(relative_error(mine.rstd, expected.rstd) < 1e-5);
  check_norm_backward({.x = x, .rstd = mine.rstd, .weight = weight},
                      {.x = exact(x), .rstd = expected.rstd, .weight = exact(weight)});
}

void check_swiglu(int64_t rows, int64_t n, at::ScalarType type) {
  INFO("rows " << rows << " n " << n << " type " << at::toString(type));
  const at::Tensor gate_up = (at::randn({rows, 2 * n}, kOnGpu) * 3).to(type);
  const at::Tensor gradient = at::randn({rows, n}, kOnGpu).to(type);
  const at::Tensor y = ops::reference::swiglu_forward(exact(gate_up));
  const at::Tensor dexpected =
      ops::reference::swiglu_backward_(exact(gradient), exact(gate_up), /*output=*/nullptr);
  const double tolerance = tolerance_of(type);
  CHECK(relative_error(ops::swiglu_forward(gate_up), y) < tolerance);
  const at::Tensor in_place = gradient.clone();
  at::Tensor output;
  const at::Tensor dmine = ops::swiglu_backward_(in_place, gate_up, &output);
  CHECK(relative_error(dmine, dexpected) < tolerance);
  CHECK(relative_error(output, y) < tolerance);
  CHECK(output.data_ptr() == in_place.data_ptr());
  CHECK(ops::swiglu_backward_(gradient, gate_up, /*output=*/nullptr).equal(dmine));
}

// For the first d columns of heads at the front of wider tokens; all others are unchanged.
void check_rotary(int64_t heads, int64_t d, int64_t passed, at::ScalarType type) {
  INFO("heads " << heads << " d " << d << " and " << passed << " type " << at::toString(type));
  constexpr int64_t kBatch = 3, kSequence = 37, kPositions = 50;
  const at::Tensor angles = at::rand({kPositions, d / 2}, kOnGpu) * 7;
  const at::Tensor cos = angles.cos(), sin = angles.sin();
  const at::Tensor places = at::randint(kPositions, {kBatch, kSequence}, kOnGpu.dtype(at::kLong));
  for (const at::Tensor& positions : {at::Tensor(), places}) {
    for (const bool back : {false, true}) {
      const at::Tensor x = at::randn({kBatch, kSequence, heads + 2, d + passed}, kOnGpu).to(type);
      const at::Tensor expected = exact(x), before = x.clone();
      const auto rotated = [&](const at::Tensor& all) {
        return all.narrow(2, 0, heads).narrow(3, 0, d);
      };
      ops::rotary_(rotated(x), cos, sin, positions, back);
      ops::reference::rotary_(rotated(expected), cos, sin, positions, back);
      CHECK(relative_error(x, expected) < tolerance_of(type));
      CHECK(x.narrow(2, heads, 2).equal(before.narrow(2, heads, 2)));
      CHECK(x.narrow(3, d, passed).equal(before.narrow(3, d, passed)));
    }
  }
}

void check_gelu(int64_t rows, int64_t n, at::ScalarType type) {
  INFO("rows " << rows << " n " << n << " type " << at::toString(type));
  const at::Tensor x = (at::randn({rows, n}, kOnGpu) * 3).to(type);
  const at::Tensor gradient = at::randn({rows, n}, kOnGpu).to(type);
  const double tolerance = tolerance_of(type);
  const at::Tensor y = ops::reference::gelu_tanh_forward(exact(x));
  const at::Tensor dx = ops::reference::gelu_tanh_backward(exact(gradient), exact(x));
  CHECK(relative_error(ops::gelu_tanh_forward(x), y) < tolerance);
  CHECK(relative_error(ops::gelu_tanh_backward(gradient, x), dx) < tolerance);
  for (const bool again : {false, true}) {
    const at::Tensor in_place = gradient.clone(), columns = at::ones({n}, kOnGpu.dtype(type));
    ops::ColumnSums sums;
    at::Tensor output;
    ops::gelu_tanh_backward_(in_place, x, columns, sums, again ? &output : nullptr);
    ops::add_column_sums(sums);
    if (again) CHECK(relative_error(output, y) < tolerance);
    CHECK(relative_error(in_place, dx) < tolerance);
    CHECK(relative_error(columns, dx.sum(0) + 1) < tolerance);
  }
}

// The same values, 16 bytes after an address aligned to 256.
at::Tensor shifted(const at::Tensor& x) {
  const auto offset = 16 / static_cast<int64_t>(x.itemsize());
  const at::Tensor room = at::empty({x.numel() + offset}, x.options());
  return room.narrow(0, offset, x.numel()).view(x.sizes()).copy_(x);
}

// in_out: weight and gradient as transposed views. shift: operands aligned to 16 bytes only.
void check_linear(int64_t rows, int64_t in, int64_t out, at::ScalarType type, bool in_out = false,
                  bool shift = false) {
  INFO("rows " << rows << " in " << in << " out " << out << " type " << at::toString(type)
               << (in_out ? " stored [in, out]" : "") << (shift ? " shifted" : ""));
  const auto placed = [&](const at::Tensor& x) { return shift ? shifted(x) : x; };
  const auto draw = [&](at::IntArrayRef shape, double scale) {
    return placed((at::randn(shape, kOnGpu) * scale).to(type));
  };
  const auto stored = [&](const at::Tensor& x) {
    return in_out ? placed(x.t().contiguous()).t() : placed(x);
  };
  const at::Tensor x = draw({rows, in}, 1),
                   weight = stored(draw({out, in}, 1 / std::sqrt(double(in))));
  const at::Tensor bias = draw({out}, 1), residual = draw({rows, out}, 1),
                   gradient = draw({rows, out}, 1);
  const double tolerance = tolerance_of(type);
  const at::Tensor product = at::mm(exact(x), exact(weight).t());
  CHECK(relative_error(ops::linear_forward(x, weight, {}), product) < tolerance);
  CHECK(relative_error(ops::linear_forward(x, weight, bias), product + exact(bias)) < tolerance);
  CHECK(relative_error(ops::linear_forward(x, weight, bias, residual),
                       product + exact(bias) + exact(residual)) < tolerance);
  at::Tensor inner;
  const at::Tensor active = ops::linear_gelu_forward(x, weight, bias, &inner);
  CHECK(relative_error(inner, product + exact(bias)) < tolerance);
  CHECK(relative_error(active, at::gelu(product + exact(bias), "tanh")) < tolerance);
  CHECK(relative_error(ops::linear_gelu_forward(x, weight, bias, nullptr),
                       at::gelu(product + exact(bias), "tanh")) < tolerance);
  CHECK(relative_error(ops::linear_backward_input(gradient, weight),
                       at::mm(exact(gradient), exact(weight))) < tolerance);
  const at::Tensor dweight = at::mm(exact(gradient).t(), exact(x));
  for (const at::ScalarType sum_type : {type, at::kFloat}) {
    const at::Tensor sum = stored(at::ones({out, in}, kOnGpu.dtype(sum_type)));
    ops::linear_backward_weight(gradient, x, sum);
    CHECK(relative_error(sum, dweight + 1) < tolerance);
    ops::linear_backward_weight(gradient, x, sum);
    CHECK(relative_error(sum, 2 * dweight + 1) < 2 * tolerance);
    sum.fill_(NAN);
    ops::linear_backward_weight(gradient, x, sum, /*add=*/false);
    CHECK(relative_error(sum, dweight) < tolerance);
    sum.fill_(NAN);
    declare_lazy_zero({in_out ? sum.t() : sum});
    ops::linear_backward_weight(gradient, x, sum);
    CHECK(relative_error(sum, dweight) < tolerance);
    ops::linear_backward_weight(gradient, x, sum);
    CHECK(relative_error(sum, 2 * dweight) < 2 * tolerance);
  }
  const at::Tensor dbias = at::ones({out}, kOnGpu.dtype(type));
  ops::ColumnSums sums;
  ops::linear_backward_bias(gradient, dbias, sums);
  ops::add_column_sums(sums);
  CHECK(relative_error(dbias, exact(gradient).sum(0) + 1) < tolerance);
}

void in_16_bits(uint64_t seed, const std::function<void(at::ScalarType)>& check) {
  at::manual_seed(seed);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) check(type);
}

}  // namespace

TEST_CASE("layer norm on the GPU") {
  TESSERA_NEEDS_GPUS(1);
  in_16_bits(34, [](at::ScalarType type) {
    for (const int64_t n : {64, 72, 1024, 1032, 2048, 2560, 4096, 4104, 5120}) {
      for (const int64_t rows : {1, 7, 265, 1001, 2609}) check_layer_norm(rows, n, type);
    }
    check_layer_norm(5, 20, type);    // not a multiple of 8
    check_layer_norm(5, 5128, type);  // wider than the kernels
  });
}

TEST_CASE("RMS norm on the GPU") {
  TESSERA_NEEDS_GPUS(1);
  in_16_bits(39, [](at::ScalarType type) {
    for (const int64_t n : {64, 72, 1024, 2048, 2560, 3072, 4096, 5120}) {
      for (const int64_t rows : {1, 7, 265, 1001, 2609}) check_rms_norm(rows, n, type);
    }
    check_rms_norm(5, 20, type);
    check_rms_norm(5, 5128, type);
  });
}

TEST_CASE("norm backward on the GPU repeats its bits, whichever of its results are asked for") {
  TESSERA_NEEDS_GPUS(1);
  in_16_bits(44, [](at::ScalarType type) {
    for (const int64_t n : {1024, 2048, 2560, 4096, 5120}) {
      const at::Tensor x = draw({777, n}, type), weight = draw({n}, type), bias = draw({n}, type),
                       gradient = draw({777, n}, type), residual = draw({777, n}, type);
      const auto forward = ops::layer_norm_forward(x, weight, bias, 1e-5);
      const auto backward = [&](bool columns, bool with_output) {
        const auto zeros = [&] { return at::zeros({n}, kOnGpu.dtype(type)); };
        const ops::LayerNormGradients sinks{zeros(), zeros(), columns ? zeros() : at::Tensor()};
        ops::ColumnSums sums;
        at::Tensor output;
        const at::Tensor dx =
            ops::norm_backward(gradient, {x, forward.mean, forward.rstd, weight, bias}, residual,
                               sinks, sums, with_output ? &output : nullptr);
        ops::add_column_sums(sums);
        return std::vector{dx, sinks.weight, sinks.bias};
      };
      const auto first = backward(true, true);
      for (const bool columns : {true, false}) {
        for (const bool with_output : {true, false}) {
          const auto again = backward(columns, with_output);
          for (size_t i = 0; i < first.size(); ++i) CHECK(again[i].equal(first[i]));
        }
      }
    }
  });
}

TEST_CASE("SwiGLU and rotary positions on the GPU, in place") {
  TESSERA_NEEDS_GPUS(1);
  in_16_bits(40, [](at::ScalarType type) {
    for (const auto& [rows, n] : {std::pair{1001, 8192}, {3, 8}, {70, 104}, {5, 20}}) {
      check_swiglu(rows, n, type);
    }
    for (const auto& [heads, d] : {std::pair{40, 64}, {3, 128}, {1, 16}, {5, 80}, {3, 24}}) {
      for (const int64_t passed : {0, 8, 64, 5}) check_rotary(heads, d, passed, type);
    }
  });
}

TEST_CASE("gelu on the GPU") {
  TESSERA_NEEDS_GPUS(1);
  in_16_bits(35, [](at::ScalarType type) {
    check_gelu(1001, 4096, type);
    check_gelu(3, 64, type);
    check_gelu(7, 24, type);
    check_gelu(3, 5, type);
  });
}

TEST_CASE("linear layers on the GPU whose operands are aligned to 16 bytes and no more") {
  TESSERA_NEEDS_GPUS(1);
  in_16_bits(37, [](at::ScalarType type) {
    for (const bool in_out : {false, true}) {
      check_linear(520, 1024, 3072, type, in_out, /*shift=*/true);
      check_linear(1664, 64, 256, type, in_out, /*shift=*/true);
      check_linear(40, 72, 24, type, in_out, /*shift=*/true);
    }
  });
}

TEST_CASE("linear layers on the GPU") {
  TESSERA_NEEDS_GPUS(1);
  in_16_bits(36, [](at::ScalarType type) {
    check_linear(520, 1024, 3072, type);
    check_linear(333, 2560, 2560, type);
    check_linear(40, 72, 24, type);
    check_linear(7, 20, 12, type);
    check_linear(520, 768, 2304, type, true);
    check_linear(333, 3072, 768, type, true);
    check_linear(7, 20, 12, type, true);
  });
}

TEST_CASE("a vocabulary's gradient in two products on the GPU replaces what was there") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(42);
  constexpr int64_t kVocabulary = 50257, kStride = 50304;
  const at::Tensor logits =
      at::randn({70, kStride}, kOnGpu).to(at::kBFloat16).narrow(1, 0, kVocabulary);
  const at::Tensor x = at::randn({70, 64}, kOnGpu).to(at::kBFloat16);
  const at::Tensor sum = at::full({kVocabulary, 64}, NAN, kOnGpu.dtype(at::kBFloat16));
  ops::linear_backward_weight(logits, x, sum, /*add=*/false);
  CHECK(relative_error(sum, at::mm(exact(logits).t(), exact(x))) < tolerance_of(at::kBFloat16));
}

TEST_CASE("a product of no tokens on the GPU adds nothing") {
  TESSERA_NEEDS_GPUS(1);
  const auto none = [](int64_t n) { return at::empty({0, n}, kOnGpu.dtype(at::kBFloat16)); };
  const at::Tensor sum = at::ones({24, 16}, kOnGpu.dtype(at::kBFloat16));
  ops::linear_backward_weight(none(24), none(16), sum);
  CHECK(sum.eq(1).all().item<bool>());
  const at::Tensor blank = at::full_like(sum, NAN);
  ops::linear_backward_weight(none(24), none(16), blank, /*add=*/false);
  CHECK(blank.eq(0).all().item<bool>());
  CHECK(ops::linear_forward(none(16), sum, {}).sizes() == at::IntArrayRef({0, 24}));
  CHECK(ops::linear_backward_input(none(24), sum).sizes() == at::IntArrayRef({0, 16}));
}

TEST_CASE("products on the GPU are right while algorithms are tried, and add once") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(38);
  constexpr int kCalls = 60;  // more than there are trials
  for (const int64_t rows : {700, 704, 1500}) {
    INFO("rows " << rows);
    const auto draw = [&](at::IntArrayRef shape) {
      return at::randn(shape, kOnGpu).to(at::kBFloat16);
    };
    const at::Tensor x = draw({rows, 1024}), weight = draw({512, 1024}), bias = draw({512});
    const at::Tensor gradient = draw({rows, 512}), sum = at::zeros({512, 1024}, kOnGpu);
    const at::Tensor product = at::mm(exact(x), exact(weight).t()) + exact(bias);
    for (int call = 0; call < kCalls; ++call) {
      const at::Tensor y = ops::linear_forward(x, weight, bias);
      CHECK(relative_error(y, product) < tolerance_of(at::kBFloat16));
      ops::linear_backward_weight(gradient, x, sum);
    }
    CHECK(relative_error(sum, kCalls * at::mm(exact(gradient).t(), exact(x))) < 1e-4);
  }
}

TEST_CASE("the embedding's gradient on the GPU adds frequent ids in fp32") {
  TESSERA_NEEDS_GPUS(1);
  in_16_bits(37, [](at::ScalarType type) {
    at::Tensor ids = at::randint(1000, {3, 700}, kOnGpu.dtype(at::kLong));
    ids[1].fill_(17);
    const at::Tensor gradient = (at::randn({3, 700, 1024}, kOnGpu) + 0.5).to(type);
    const at::Tensor sum = at::ones({1000, 1024}, kOnGpu.dtype(type));
    const at::Tensor expected =
        exact(sum).index_add(0, ids.view(-1), exact(gradient).view({-1, 1024}));
    ops::embedding_backward(gradient, ids, sum);
    CHECK(relative_error(sum, expected) < tolerance_of(type));
    CHECK(relative_error(sum[17], expected[17]) < tolerance_of(type));
  });
}

TEST_CASE("the embedding's gradient on the GPU is the same with and without a sort") {
  TESSERA_NEEDS_GPUS(1);
  in_16_bits(41, [](at::ScalarType type) {
    for (const int64_t n : {8, 1024, 2048, 4104}) {
      for (const int64_t rows : {1, 2, 127, 128, 129, 2609, 4095, 4096, 4097, 9000}) {
        INFO("rows " << rows << " n " << n << " type " << at::toString(type));
        const at::Tensor few = at::randint(5, {rows}, kOnGpu.dtype(at::kLong)),
                         many = at::randint(3000, {rows}, kOnGpu.dtype(at::kLong));
        const at::Tensor ids = at::where(at::rand({rows}, kOnGpu).lt(0.3), few, many);
        const at::Tensor gradient = at::randn({rows, n}, kOnGpu).to(type);
        const at::Tensor sum = at::ones({3000, n}, kOnGpu.dtype(type));
        const at::Tensor expected = exact(sum).index_add(0, ids, exact(gradient));
        ops::embedding_backward(gradient, ids, sum);
        CHECK(relative_error(sum, expected) < tolerance_of(type));
        const at::Tensor untouched =
            at::ones({3000}, kOnGpu.dtype(at::kBool)).index_fill(0, ids, false);
        CHECK(sum.masked_select(untouched.unsqueeze(1)).eq(1).all().item<bool>());
        // A view with gaps, which contain other ids.
        const at::Tensor apart = at::stack({ids, ids + 1}, 1).select(1, 0);
        const at::Tensor again = at::ones_like(sum);
        ops::embedding_backward(gradient, apart, again);
        CHECK(again.equal(sum));
      }
    }
  });
}
