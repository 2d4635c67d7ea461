// SPDX-License-Identifier: MIT
#include <cmath>
#include <limits>

#include "lib/ops/reference.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

struct Buffers {
  at::Tensor parameter, gradient, exp_avg, exp_avg_sq, low;

  Buffers(int64_t n, at::ScalarType gradient_type)
      : parameter(at::randn({n}, kOnGpu)),
        gradient(at::randn({n}, kOnGpu).to(gradient_type)),
        exp_avg(at::randn({n}, kOnGpu) * 0.1),
        exp_avg_sq(at::rand({n}, kOnGpu) * 0.1),
        low(gradient_type == at::kFloat ? at::Tensor()
                                        : at::zeros({n}, kOnGpu.dtype(gradient_type))) {}

  Buffers clone() const {
    Buffers copy = *this;
    for (at::Tensor* x :
         {&copy.parameter, &copy.gradient, &copy.exp_avg, &copy.exp_avg_sq, &copy.low}) {
      if (x->defined()) *x = x->clone();
    }
    return copy;
  }

  ops::AdamWRange range(int64_t first, int64_t count, double weight_decay) const {
    const auto cut = [&](const at::Tensor& x) {
      return x.defined() ? x.narrow(0, first, count) : x;
    };
    return {cut(parameter), cut(gradient), cut(exp_avg), cut(exp_avg_sq), cut(low), weight_decay};
  }

  // Ranges of many lengths, aligned and not.
  std::vector<ops::AdamWRange> ranges() const {
    std::vector<ops::AdamWRange> result;
    const int64_t n = parameter.numel();
    for (int64_t first = 0, i = 0; first < n; ++i) {
      const int64_t count = std::min(n - first, i % 5 == 4 ? int64_t(3) : 8 * (1 + 331 * i));
      result.push_back(range(first, count, i % 2 ? 0.1 : 0.0));
      result.back().lr_factor = i % 3 == 0 ? 2.5 : 1;
      first += count;
    }
    return result;
  }
};

}  // namespace

TEST_CASE("AdamW on the GPU is the reference") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(51);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Buffers a(5'000'003, type);
    const Buffers b = a.clone();
    REQUIRE(a.ranges().size() > 50);  // more than one launch's table
    const auto scalar = [](float x) { return at::full({}, x, kOnGpu); };
    for (const float t : {1.0F, 2.0F, 3.0F, 1000.0F}) {
      const ops::AdamWScalars scalars{scalar(0.01F), scalar(t), scalar(0.5F), scalar(0)};
      const ops::AdamWOptions options{
          .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .decoupled = t != 2};
      ops::adamw_update(a.ranges(), options, scalars);
      ops::reference::adamw_update(b.ranges(), options, scalars);
    }
    CHECK(relative_error(a.parameter, b.parameter) < 1e-6);
    CHECK(relative_error(a.exp_avg, b.exp_avg) < 1e-6);
    CHECK(relative_error(a.exp_avg_sq, b.exp_avg_sq) < 1e-6);
    if (a.low.defined()) CHECK(a.low.equal(a.parameter.to(type)));
    const Buffers before = a.clone();
    a.gradient.fill_(NAN);
    ops::adamw_update(a.ranges(), {}, {scalar(0.01F), scalar(4), {}, scalar(1)});
    CHECK(a.parameter.equal(before.parameter));
    CHECK(a.exp_avg_sq.equal(before.exp_avg_sq));
  }
}

TEST_CASE("AdamW on the GPU takes any number of empty ranges") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(54);
  const Buffers a(1000, at::kFloat);
  const Buffers b = a.clone();
  const auto scalar = [](float x) { return at::full({}, x, kOnGpu); };
  const ops::AdamWScalars scalars{scalar(0.01F), scalar(1), scalar(1), scalar(0)};
  std::vector<ops::AdamWRange> ranges(200, a.range(0, 0, 0.1));
  ops::adamw_update(ranges, {}, scalars);
  CHECK(a.parameter.equal(b.parameter));
  ranges.push_back(a.range(0, 1000, 0.1));
  ops::adamw_update(ranges, {}, scalars);
  ops::adamw_update(std::vector{b.range(0, 1000, 0.1)}, {}, scalars);
  CHECK(a.parameter.equal(b.parameter));
}

// Shards start anywhere, and a rank's range must not change the numbers.
TEST_CASE("AdamW on the GPU gives an element the same bits in every range") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(53);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    constexpr int64_t kCount = 100'003;
    const Buffers whole(kCount, type);
    const Buffers cut = whole.clone();
    const auto scalar = [](float x) { return at::full({}, x, kOnGpu); };
    for (const float t : {1.0F, 7.0F}) {
      const ops::AdamWScalars scalars{scalar(0.01F), scalar(t), scalar(0.3F), scalar(0)};
      ops::adamw_update(std::vector{whole.range(0, kCount, 0.1)}, {}, scalars);
      ops::adamw_update(std::vector{cut.range(0, 1, 0.1), cut.range(1, 50'000, 0.1),
                                    cut.range(50'001, kCount - 50'001, 0.1)},
                        {}, scalars);
    }
    CHECK(cut.parameter.equal(whole.parameter));
    CHECK(cut.exp_avg.equal(whole.exp_avg));
    CHECK(cut.exp_avg_sq.equal(whole.exp_avg_sq));
    if (cut.low.defined()) CHECK(cut.low.equal(whole.low));
  }
}

TEST_CASE("square_sum on the GPU") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(52);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor flat = at::randn({3'000'001}, kOnGpu).to(type);
    std::vector<at::Tensor> pieces;
    for (int64_t first = 0, i = 1; first < flat.numel(); ++i) {
      const int64_t count = std::min(flat.numel() - first, 577 * i);
      pieces.push_back(flat.narrow(0, first, count));
      first += count;
    }
    REQUIRE(pieces.size() > 65);
    const double expected = flat.to(at::kDouble).square().sum().item<double>();
    CHECK(ops::square_sum(pieces).item<double>() == Approx(expected).epsilon(2e-6));
    flat[2'999'999] = NAN;
    CHECK(std::isnan(ops::square_sum(pieces).item<float>()));
  }
}

TEST_CASE("clipping on the GPU") {
  TESSERA_NEEDS_GPUS(1);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double squared : {0.0, 1e-30, 0.25, 4.0, 1e30, infinity, double(NAN)}) {
    for (const double scale : {1.0, 65536.0}) {
      for (const double max_norm : {0.0, 0.5, 1.0}) {
        INFO("squared norm " << squared << " scale " << scale << " most " << max_norm);
        const at::Tensor x = at::full({}, squared, kOnGpu), s = at::full({}, scale, kOnGpu);
        const ops::Clipping mine = ops::clipping(x, s, max_norm);
        const ops::Clipping expected = ops::reference::clipping(x.cpu(), s.cpu(), max_norm);
        const auto same = [](const at::Tensor& a, const at::Tensor& b) {
          CHECK(a.dim() == 0);
          CHECK(at::allclose(a.cpu(), b, 1e-6, 0, /*equal_nan=*/true));
        };
        same(mine.norm, expected.norm);
        same(mine.coefficient, expected.coefficient);
        same(mine.factor, expected.factor);
        same(mine.overflow, expected.overflow);
      }
    }
  }
}
