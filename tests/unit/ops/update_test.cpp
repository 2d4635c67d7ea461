// SPDX-License-Identifier: MIT
#include "lib/ops/update.h"

#include <cmath>
#include <limits>

#include "lib/ops/cuda/adamw_table.h"
#include "tests/support/scalar.hpp"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;
using tessera::test::scalar;

namespace {

struct UpdateState {
  at::Tensor parameter = at::randn({37}), exp_avg = at::zeros({37}), exp_avg_sq = at::zeros({37});
};

// Algorithm 2 of Loshchilov and Hutter (2019) with a constant schedule, element by element in fp64.
void plain_adamw(std::vector<double>& p, std::vector<double>& m, std::vector<double>& v,
                 const at::Tensor& gradient, double lr, double decay, int t,
                 const ops::AdamWOptions& o) {
  for (size_t i = 0; i < p.size(); ++i) {
    const double g = gradient[int64_t(i)].item<double>();
    m[i] = o.beta1 * m[i] + (1 - o.beta1) * g;
    v[i] = o.beta2 * v[i] + (1 - o.beta2) * g * g;
    const double mean = m[i] / (1 - std::pow(o.beta1, t)),
                 variance = v[i] / (1 - std::pow(o.beta2, t));
    p[i] -= lr * (mean / (std::sqrt(variance) + o.epsilon) + decay * p[i]);
  }
}

std::vector<double> values(const at::Tensor& x) {
  const at::Tensor y = x.to(at::kDouble);
  return {y.data_ptr<double>(), y.data_ptr<double>() + y.numel()};
}

}  // namespace

TEST_CASE("a launch's table of AdamW takes any number of empty ranges") {
  struct {
    ops::cuda::AdamWTable table;
    int behind = 77;
  } memory;
  ops::cuda::AdamWTable& table = memory.table;
  constexpr int kMax = ops::cuda::AdamWTable::kMax;
  for (int i = 0; i < 2 * kMax; ++i) {
    REQUIRE_FALSE(table.full());
    table.add({.count = 0});
  }
  for (int i = 0; i < kMax; ++i) {
    REQUIRE_FALSE(table.full());
    table.add({.count = 1 + i * ops::cuda::kAdamWChunk});
    if (i % 3 == 0 && !table.full()) table.add({.count = 0});
  }
  CHECK(table.full());
  CHECK(table.count == kMax);
  for (int i = 0; i < kMax; ++i) {
    CHECK(table.first_chunk[i + 1] - table.first_chunk[i] == i + 1);
  }
  CHECK(memory.behind == 77);
  // On the host as well.
  const at::Tensor none = at::empty({0});
  const std::vector<ops::AdamWRange> ranges(49, {none, none, none, none, {}, 0.1});
  CHECK_NOTHROW(ops::adamw_update(ranges, {}, {scalar(0.01F), scalar(1)}));
}

TEST_CASE("AdamW follows the paper's algorithm over several steps") {
  at::manual_seed(11);
  UpdateState s;
  const at::Tensor low = at::zeros({37}, at::kBFloat16);
  const ops::AdamWOptions options{.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-6};
  auto p = values(s.parameter), m = values(s.exp_avg), v = values(s.exp_avg_sq);
  for (int t = 1; t <= 5; ++t) {
    const at::Tensor gradient = at::randn({37}).to(at::kBFloat16);
    const ops::AdamWRange range{s.parameter, gradient, s.exp_avg, s.exp_avg_sq, low, 0.1};
    ops::adamw_update({&range, 1}, options,
                      {.learning_rate = scalar(0.01F),
                       .step_count = scalar(float(t)),
                       .gradient_scale = scalar(0.5F),
                       .skip = scalar(0)});
    plain_adamw(p, m, v, gradient.to(at::kFloat) * 0.5, 0.01, 0.1, t, options);
  }
  CHECK(relative_error(s.parameter, at::tensor(p, at::kDouble)) < 1e-6);
  CHECK(relative_error(s.exp_avg, at::tensor(m, at::kDouble)) < 1e-6);
  CHECK(relative_error(s.exp_avg_sq, at::tensor(v, at::kDouble)) < 1e-6);
  CHECK(low.eq(s.parameter.to(at::kBFloat16)).all().item<bool>());
}

TEST_CASE("a skipped AdamW step changes nothing, not even through NaN") {
  at::manual_seed(12);
  UpdateState s;
  const at::Tensor before = s.parameter.clone();
  const at::Tensor nan = at::full({37}, std::numeric_limits<float>::quiet_NaN());
  const ops::AdamWRange range{s.parameter, nan, s.exp_avg, s.exp_avg_sq, {}};
  ops::adamw_update({&range, 1}, {},
                    {.learning_rate = scalar(0.1F),
                     .step_count = scalar(1),
                     .gradient_scale = {},
                     .skip = scalar(1)});
  CHECK(s.parameter.equal(before));
  CHECK(s.exp_avg.eq(0).all().item<bool>());
}

TEST_CASE("AdamW over many ranges is AdamW over each") {
  at::manual_seed(13);
  UpdateState a, b;
  b.parameter = a.parameter.clone();
  const at::Tensor gradient = at::randn({37});
  const ops::AdamWScalars scalars{
      .learning_rate = scalar(0.1F), .step_count = scalar(1), .gradient_scale = {}, .skip = {}};
  std::vector<ops::AdamWRange> ranges;
  for (auto [first, count, decay] : {std::tuple{0, 5, 0.1}, std::tuple{5, 32, 0.0}}) {
    const auto cut = [&, first = first, count = count](const at::Tensor& x) {
      return x.narrow(0, first, count);
    };
    ranges.push_back(
        {cut(a.parameter), cut(gradient), cut(a.exp_avg), cut(a.exp_avg_sq), {}, decay});
    const ops::AdamWRange alone{
        cut(b.parameter), cut(gradient), cut(b.exp_avg), cut(b.exp_avg_sq), {}, decay};
    ops::adamw_update({&alone, 1}, {}, scalars);
  }
  ops::adamw_update(ranges, {}, scalars);
  CHECK(a.parameter.equal(b.parameter));
}

TEST_CASE("square_sum adds over tensors and shows non-finite values") {
  at::manual_seed(14);
  const std::vector<at::Tensor> tensors{at::randn({100}), at::randn({3, 7}).to(at::kBFloat16),
                                        at::empty({0})};
  double expected = 0;
  for (const auto& tensor : tensors)
    expected += tensor.to(at::kDouble).square().sum().item<double>();
  CHECK(ops::square_sum(tensors).item<double>() == Approx(expected).epsilon(1e-6));
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    CHECK_FALSE(std::isfinite(
        ops::square_sum(std::vector<at::Tensor>{tensors[0], at::full({2}, bad)}).item<float>()));
  }
}

TEST_CASE("clipping follows from the squared norm") {
  const auto scalar = [](double x) { return at::full({}, x, at::kFloat); };
  const auto is = [](const at::Tensor& x, double expected) {
    CHECK(x.scalar_type() == at::kFloat);
    CHECK(x.dim() == 0);
    CHECK(x.item<double>() == Approx(expected).epsilon(1e-6));
  };
  const ops::Clipping clipped = ops::clipping(scalar(64 * 64 * 16), scalar(64), 1.0);
  is(clipped.norm, 4);
  is(clipped.coefficient, 1 / (4 + 1e-6));
  is(clipped.factor, 1 / (4 + 1e-6) / 64);
  is(clipped.overflow, 0);
  const ops::Clipping small = ops::clipping(scalar(0.25), scalar(1), 1.0);
  is(small.norm, 0.5);
  is(small.coefficient, 1);
  is(ops::clipping(scalar(0), scalar(2), 1.0).factor, 0.5);
  is(ops::clipping(scalar(100), scalar(2), 0).factor, 0.5);
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    const ops::Clipping none = ops::clipping(scalar(bad), scalar(8), 1.0);
    CHECK(none.overflow.item<float>() == 1);
    CHECK_FALSE(std::isfinite(none.norm.item<float>()));
  }
}
