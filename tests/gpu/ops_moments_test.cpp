// SPDX-License-Identifier: MIT
// AdamW with moments in bf16 and in 8 bits on the GPU.
#include <cmath>

#include "lib/ops/moment_map.h"
#include "lib/ops/moments.h"
#include "lib/ops/reference.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/ops/adamw_state.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int64_t kBlock = ops::kMomentBlock;

const auto kHere = at::TensorOptions(at::kCUDA);

using Moments = test::AdamWState;

Moments moments_of(int64_t n, at::ScalarType type, at::ScalarType moments) {
  const at::Tensor parameter = at::randn({n}, kHere);
  const at::Tensor gradient = (at::randn({n}, kHere) * at::rand({n}, kHere).pow(4)).to(type);
  return {parameter, gradient, moments,
          type == at::kFloat ? at::Tensor() : at::zeros({n}, kHere.dtype(type))};
}

// More ranges than one launch's table, of many lengths.
std::vector<ops::AdamWRange> uneven_ranges(const Moments& state) {
  std::vector<ops::AdamWRange> result;
  const int64_t n = state.gradient.numel();
  for (int64_t first = 0, i = 0; first < n; ++i) {
    const int64_t count = std::min(n - first, kBlock * (1 + 7 * i));
    result.push_back(state.range(first, count));
    result.back().lr_factor = i % 3 == 0 ? 2.5 : 1;
    first += count;
  }
  return result;
}

at::Tensor scalar(double x) { return at::full({}, x, kHere.dtype(at::kFloat)); }

double differing(const at::Tensor& a, const at::Tensor& b) {
  return a.ne(b).sum().item<double>() / static_cast<double>(a.numel());
}

void check_bits(const Moments& a, const Moments& b) {
  CHECK(a.masters().equal(b.masters()));
  CHECK(a.exp_avg.equal(b.exp_avg));
  CHECK(a.exp_avg_sq.equal(b.exp_avg_sq));
  if (a.largest.defined()) CHECK(a.largest.equal(b.largest));
  if (a.largest.defined()) CHECK(a.largest_sq.equal(b.largest_sq));
  if (a.low.defined()) CHECK(a.low.equal(b.low));
}

}  // namespace

TEST_CASE("AdamW with bf16 and 8-bit moments on the GPU is the reference") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(61);
  for (const at::ScalarType moments : {at::kBFloat16, at::kByte}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      INFO(moments << " beside gradients in " << type);
      const Moments a = moments_of(3'000'003, type, moments);
      REQUIRE(uneven_ranges(a).size() > 40);
      for (const double t : {1.0, 2.0, 3.0, 1000.0}) {
        const Moments b = a.copy();  // step by step, so that rounding ties do not accumulate
        const ops::AdamWScalars scalars{scalar(0.01), scalar(t), scalar(0.5), scalar(0)};
        const ops::AdamWOptions options{.epsilon = 1e-6, .decoupled = t != 2};
        ops::adamw_update(uneven_ranges(a), options, scalars);
        ops::reference::adamw_update(uneven_ranges(b), options, scalars);
        CHECK(relative_error(a.parameter, b.parameter) < 1e-6);
        // A tie may round to either neighbour.
        CHECK(differing(a.exp_avg, b.exp_avg) < 1e-3);
        CHECK(differing(a.exp_avg_sq, b.exp_avg_sq) < 1e-3);
        if (a.largest.defined()) CHECK(relative_error(a.largest, b.largest) < 1e-6);
        if (a.largest.defined()) CHECK(relative_error(a.largest_sq, b.largest_sq) < 1e-6);
        if (a.low.defined()) CHECK(a.low.equal(a.parameter.to(type)));
      }
      const Moments before = a.copy();
      a.gradient.fill_(NAN);
      ops::adamw_update(uneven_ranges(a), {}, {scalar(0.01), scalar(4), {}, scalar(1)});
      check_bits(a, before);
    }
  }
}

// Squares of gradients in one block differ by more than 8 bits can represent; some become zero.
TEST_CASE("8-bit moments on the GPU move no element by more than AdamW may") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(64);
  constexpr int64_t kCount = 70'001;
  const at::Tensor gradient = at::pow(10.0, -8 * at::rand({kCount}, kHere));
  for (const bool stops : {false, true}) {
    const Moments state{at::zeros({kCount}, kHere), gradient.clone(), at::kByte, {}};
    for (int t = 1; t <= 30; ++t) {
      if (stops && t > 1) state.gradient.masked_fill_(gradient.lt(0.1), 0);
      state.parameter.zero_();
      ops::adamw_update(uneven_ranges(state), {.epsilon = 1e-8},
                        {scalar(1), scalar(t), scalar(1), scalar(0)});
      // 2.5: the largest learning rate factor; 2.74: of rounding; 1.45: the exact AdamW's bound by
      // then.
      CHECK(state.parameter.abs().max().item<double>() <= 2.5 * 2.74 * 1.45);
    }
    if (!stops) CHECK(state.exp_avg_sq.ne(0).all().item<bool>());
  }
}

// Shards start at any block, and a rank's range must not change the numbers.
TEST_CASE("kept moments on the GPU have the same bits in every range of whole blocks") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(62);
  for (const at::ScalarType moments : {at::kBFloat16, at::kByte}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      constexpr int64_t kCount = 100'003;
      const Moments whole = moments_of(kCount, type, moments);
      const Moments cut = whole.copy();
      for (const double t : {1.0, 7.0}) {
        const ops::AdamWScalars scalars{scalar(0.01), scalar(t), scalar(0.3), scalar(0)};
        ops::adamw_update(std::vector{whole.range(0, kCount)}, {}, scalars);
        ops::adamw_update(std::vector{cut.range(0, kBlock), cut.range(kBlock, 300 * kBlock),
                                      cut.range(301 * kBlock, kCount - 301 * kBlock)},
                          {}, scalars);
      }
      check_bits(cut, whole);
    }
  }
}

// State and step may be on either device.
TEST_CASE("AdamW on the GPU has the host's bits") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(63);
  for (const at::ScalarType moments : {at::kFloat, at::kBFloat16, at::kByte}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const bool split : {false, true}) {
        if (split && type != at::kBFloat16) continue;
        INFO(moments << " beside gradients in " << type << (split ? ", split masters" : ""));
        const Moments whole = moments_of(70'001, type, moments);
        const Moments gpu = split ? whole.split() : whole;
        Moments cpu = gpu.copy();
        for (at::Tensor* x : cpu.tensors()) *x = x->defined() ? x->cpu() : *x;
        for (const double t : {1.0, 2.0, 3.0, 1000.0, 123'456.0}) {
          const ops::AdamWOptions options{.epsilon = 1e-6, .decoupled = t != 2};
          const auto step = [&](const Moments& state, const at::TensorOptions& device) {
            const auto on = [&](double x) { return at::full({}, x, device.dtype(at::kFloat)); };
            std::vector<ops::AdamWRange> ranges = uneven_ranges(state);
            for (ops::AdamWRange& range : ranges) {
              range.lr_factor = range.lr_factor == 1 ? 0.1 : 1;
              range.weight_decay = 0.01;
            }
            ops::adamw_update(ranges, options, {on(0.003), on(t), on(0.3), on(0)});
          };
          step(gpu, kHere);
          step(cpu, at::TensorOptions(at::kCPU));
          Moments back = gpu.copy();
          for (at::Tensor* x : back.tensors()) *x = x->defined() ? x->cpu() : *x;
          check_bits(back, cpu);
        }
      }
    }
  }
}
