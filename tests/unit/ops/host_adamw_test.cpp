// SPDX-License-Identifier: MIT
// The host's AdamW and sum of squares against their references; their bits depend on inputs only.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <limits>

#include "lib/ops/reference.h"
#include "lib/ops/update.h"
#include "tests/support/ranks.hpp"
#include "tests/support/scalar.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/ops/targets.h"

using namespace tessera;
using tessera::test::scalar;

namespace {

struct HostState {
  at::Tensor parameter, gradient, exp_avg, exp_avg_sq, low;

  HostState(int64_t numel, at::ScalarType gradient_type, at::ScalarType low_type)
      : parameter(at::randn({numel})),
        gradient(at::randn({numel}).mul_(4).to(gradient_type)),
        exp_avg(at::randn({numel}).mul_(0.1)),
        exp_avg_sq(at::rand({numel})),
        low(low_type == at::kFloat ? at::Tensor() : at::zeros({numel}, low_type)) {}

  HostState copy() const {
    HostState other = *this;
    for (at::Tensor* x : {&other.parameter, &other.exp_avg, &other.exp_avg_sq, &other.low}) {
      if (x->defined()) *x = x->clone();
    }
    return other;
  }
  ops::AdamWRange range(int64_t first, int64_t count, double decay = 0.1) const {
    const auto part = [&](const at::Tensor& x) {
      return x.defined() ? x.narrow(0, first, count) : x;
    };
    return {part(parameter), part(gradient), part(exp_avg), part(exp_avg_sq), part(low), decay};
  }
  ops::AdamWRange range() const { return range(0, parameter.numel()); }
};

const ops::AdamWOptions kHostOptions{.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-6};

ops::AdamWScalars scalars(double step, double skip = 0) {
  return {.learning_rate = scalar(0.01),
          .step_count = scalar(step),
          .gradient_scale = scalar(0.3),
          .skip = scalar(skip)};
}

void update(const ops::AdamWRange& range, double step = 3) {
  ops::adamw_update({&range, 1}, kHostOptions, scalars(step));
}

void check_same_host_bits(const HostState& a, const HostState& b) {
  CHECK(a.parameter.equal(b.parameter));
  CHECK(a.exp_avg.equal(b.exp_avg));
  CHECK(a.exp_avg_sq.equal(b.exp_avg_sq));
  if (a.low.defined()) CHECK(a.low.equal(b.low));
}

}  // namespace

TEST_CASE("host AdamW equals the reference to a few units in the last place") {
  at::manual_seed(21);
  for (const auto gradient : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto low : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t numel : {1, 7, 16, 63, 1000, 70'001}) {
        INFO(gradient << " -> " << low << ", " << numel << " elements");
        HostState a(numel, gradient, low);
        const HostState b = a.copy();
        for (int step = 1; step <= 3; ++step) {
          update(a.range(), step);
          const ops::AdamWRange range = b.range();
          ops::reference::adamw_update({&range, 1}, kHostOptions, scalars(step));
        }
        const auto error = [](const at::Tensor& x, const at::Tensor& y, double least) {
          return ((x - y).abs() / y.abs().clamp_min(least)).max().item<double>();
        };
        CHECK(error(a.exp_avg, b.exp_avg, 0.1) < 1e-6);
        CHECK(error(a.exp_avg_sq, b.exp_avg_sq, 1e-3) < 1e-6);
        CHECK(error(a.parameter, b.parameter, 0.01) < 2e-6);
        if (a.low.defined()) CHECK(a.low.equal(a.parameter.to(low)));
      }
    }
  }
}

TEST_CASE("the bits of host AdamW depend neither on threads, pieces, places nor instruction sets") {
  at::manual_seed(22);
  constexpr int64_t kNumel = 100'003;
  const HostState before(kNumel, at::kBFloat16, at::kHalf);
  HostState whole = before.copy();
  update(whole.range());
  CHECK_FALSE(whole.parameter.equal(before.parameter));

  const int threads = at::get_num_threads();
  for (const int count : {1, 2, 3, 5}) {
    at::set_num_threads(count);
    HostState again = before.copy();
    update(again.range());
    check_same_host_bits(again, whole);
  }
  at::set_num_threads(threads);

  for (const int64_t piece : {1000, 4096, 33'333}) {
    HostState pieces = before.copy();
    std::vector<ops::AdamWRange> ranges;
    for (int64_t first = 0; first < kNumel; first += piece) {
      ranges.push_back(pieces.range(first, std::min(piece, kNumel - first)));
    }
    ops::adamw_update(ranges, kHostOptions, scalars(3));
    check_same_host_bits(pieces, whole);
  }

  const int targets = test::with_every_target([&] {
    HostState again = before.copy();
    for (const auto& [first, count] : {std::pair{0, 5}, {5, 90'000}, {90'005, 9998}}) {
      update(again.range(first, count));  // unaligned
    }
    check_same_host_bits(again, whole);
  });
  CHECK(targets >= 2);  // at least one besides the portable target
}

TEST_CASE("every half and bfloat16 enters host AdamW exactly, and leaves it as LibTorch rounds") {
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor all = at::arange(-32768, 32768, at::kShort).view(type);
    // Values between, at and beside midpoints, with subnormal and huge ones.
    const at::Tensor exact = all.to(at::kFloat);
    const at::Tensor bits = exact.view(at::kInt);
    const int64_t middle = type == at::kBFloat16 ? 1 << 15 : 1 << 12;
    std::vector<at::Tensor> inputs{exact};
    for (const int64_t offset : {middle - 1, middle, middle + 1, int64_t{1}, int64_t{77}}) {
      inputs.push_back((bits + offset).view(at::kFloat));
      inputs.push_back((bits + (offset - middle)).view(at::kFloat));
    }
    test::with_every_target([&] {
      const at::Tensor zeros = at::zeros({65536});
      ops::AdamWRange range{zeros.clone(), all, zeros.clone(), zeros.clone(), {}, 0};
      const ops::AdamWOptions options{.beta1 = 0, .beta2 = 0.5};
      const ops::AdamWScalars one{.learning_rate = scalar(0), .step_count = scalar(1)};
      ops::adamw_update({&range, 1}, options, one);
      test::require_bit_equal(range.exp_avg, exact, "gradient");
      for (const at::Tensor& input : inputs) {
        range = {input.clone(), zeros, zeros.clone(), zeros.clone(), at::empty({65536}, type), 0};
        ops::adamw_update({&range, 1}, options, one);
        test::require_bit_equal(range.low_precision, input.to(type), "rounded parameter");
      }
    });
  }
}

TEST_CASE("a skipped step leaves every array of the host AdamW as it was") {
  at::manual_seed(23);
  HostState state(70'000, at::kHalf, at::kBFloat16);
  state.gradient.fill_(std::numeric_limits<float>::quiet_NaN());
  const HostState before = state.copy();
  const ops::AdamWRange range = state.range();
  ops::adamw_update({&range, 1}, kHostOptions, scalars(3, /*skip=*/1));
  check_same_host_bits(state, before);
}

TEST_CASE("host sum of squares: exact to fp32, the same bits on any number of threads") {
  at::manual_seed(24);
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const std::vector<at::Tensor> tensors{at::randn({100'003}).to(type), at::randn({5}).to(type),
                                          at::randn({40'000}).to(type)};
    double expected = 0;
    for (const auto& x : tensors) expected += x.to(at::kDouble).square().sum().item<double>();
    const float value = ops::square_sum(tensors).item<float>();
    CHECK(value == Approx(expected).epsilon(1e-7));
    const int threads = at::get_num_threads();
    for (const int count : {1, 2, 3}) {
      at::set_num_threads(count);
      CHECK(ops::square_sum(tensors).item<float>() == value);
    }
    at::set_num_threads(threads);
    test::with_every_target([&] { CHECK(ops::square_sum(tensors).item<float>() == value); });
  }
}
