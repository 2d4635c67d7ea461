// SPDX-License-Identifier: MIT
// Moments in 8 bits and bf16: the map, blocks, and the host's AdamW on them.
#include "lib/ops/moments.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <limits>

#include "lib/ops/cpu/kernels.h"
#include "lib/ops/moment_map.h"
#include "lib/ops/reference.h"
#include "lib/ops/update.h"
#include "tests/support/scalar.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/ops/adamw_state.h"
#include "tests/unit/ops/targets.h"

using namespace tessera;
using tessera::test::scalar;

namespace {

// bitsandbytes' create_dynamic_map(signed, max_exponent_bits=7, total_bits=8), line by line.
at::Tensor create_dynamic_map(bool is_signed) {
  std::vector<at::Tensor> data;
  for (int i = 0; i < 7; ++i) {
    const int64_t items = (int64_t{1} << (is_signed ? i : i + 1)) + 1;
    const at::Tensor boundaries = at::linspace(0.1, 1, items, at::kFloat);
    const at::Tensor means =
        (boundaries.slice(0, 0, items - 1) + boundaries.slice(0, 1, items)) / 2.0;
    data.push_back(means * std::pow(10, -6 + i));
    if (is_signed) data.push_back(-means * std::pow(10, -6 + i));
  }
  data.push_back(at::tensor({0.0F, 1.0F}));
  return std::get<0>(at::cat(data).sort());
}

using State = test::AdamWState;

State state_of(int64_t numel, at::ScalarType moments, at::ScalarType gradient_type) {
  const at::Tensor parameter = at::randn({numel});
  const at::Tensor gradient = at::randn({numel}).mul_(4).to(gradient_type);
  return {parameter, gradient, moments,
          gradient_type == at::kFloat ? at::Tensor() : at::zeros({numel}, gradient_type)};
}

const ops::AdamWOptions kOptions{.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-6};

ops::AdamWScalars at_step(double step, double skip = 0) {
  return {scalar(0.01), scalar(step), scalar(0.3), scalar(skip)};
}

void check_same_bits(const State& a, const State& b) {
  CHECK(a.parameter.equal(b.parameter));
  CHECK(a.exp_avg.equal(b.exp_avg));
  CHECK(a.exp_avg_sq.equal(b.exp_avg_sq));
  if (a.largest.defined()) CHECK(a.largest.equal(b.largest));
  if (a.largest.defined()) CHECK(a.largest_sq.equal(b.largest_sq));
  if (a.low.defined()) CHECK(a.low.equal(b.low));
}

}  // namespace

TEST_CASE("the maps of 8-bit moments are bitsandbytes', counted from zero") {
  for (const bool is_signed : {true, false}) {
    const ops::MomentMap& map = is_signed ? ops::kSignedMap : ops::kUnsignedMap;
    const at::Tensor expected = create_dynamic_map(is_signed);
    REQUIRE(expected.numel() == ops::kMomentCodes);
    CHECK(map.zero == (is_signed ? 127 : 0));
    CHECK(map.value_of[0] == 0);
    for (int place = 0; place < ops::kMomentCodes; ++place) {
      const float value = map.value_of[(place - map.zero) & 0xFF];
      CHECK(value == Approx(expected[place].item<float>()).epsilon(3e-7));
      if (place > 0) {
        CHECK(map.middle[place - 1] > map.value_of[(place - 1 - map.zero) & 0xFF]);
        CHECK(map.middle[place - 1] < value);
      }
    }
  }
}

TEST_CASE("8-bit moments take the nearest value of their block's map") {
  at::manual_seed(31);
  for (const bool is_signed : {true, false}) {
    for (const int64_t numel : {1, 255, 256, 257, 1000}) {
      INFO((is_signed ? "signed, " : "unsigned, ") << numel << " elements");
      at::Tensor values = at::randn({numel}) * at::rand({numel}).pow(6);
      if (!is_signed) values = values.square();
      if (numel > 512) values.narrow(0, 256, 256).zero_();
      const int64_t blocks = (numel + 255) / 256;
      const at::Tensor codes = at::zeros({numel}, at::kByte), largest = at::zeros({blocks});
      ops::encode_moments(values, is_signed, codes, largest);
      const at::Tensor decoded = ops::decode_moments(codes, is_signed, largest);
      const at::Tensor map = create_dynamic_map(is_signed);
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t count = std::min<int64_t>(256, numel - b * 256);
        const at::Tensor block = values.narrow(0, b * 256, count);
        const double most = block.abs().max().item<double>();
        CHECK(largest[b].item<double>() == most);
        // No map value is nearer.
        const at::Tensor nearest =
            std::get<0>((block.unsqueeze(1) - map.unsqueeze(0) * most).abs().min(1));
        const at::Tensor error = (block - decoded.narrow(0, b * 256, count)).abs();
        CHECK((error - nearest).max().item<double>() <= 1e-6 * most);
      }
    }
  }
}

TEST_CASE("a second moment that is not zero is never kept as zero") {
  at::manual_seed(34);
  const auto least = std::numeric_limits<float>::denorm_min();
  for (const float most : {1.0F, 1e30F, 1e-30F, 3 * least}) {
    INFO("beside " << most);
    at::Tensor values = most * at::pow(10.0, -at::arange(256).to(at::kFloat) / 4);
    for (int64_t i = 64; i < 128; ++i) values[i] = least;  // the quotient may underflow to zero
    values.narrow(0, 128, 64).zero_();
    at::Tensor codes = at::zeros({256}, at::kByte), largest = at::zeros({1});
    const auto check = [&](const at::Tensor& kept) {
      CHECK(kept.ne(0).equal(values.ne(0)));
      CHECK(kept.narrow(0, 64, 64).ne(1).sum().item<int64_t>() == (most < 1e-40F ? 64 : 0));
    };
    ops::encode_moments(values, /*is_signed=*/false, codes, largest);
    check(codes);
    const at::Tensor on_host = at::zeros({256}, at::kByte);
    CHECK(ops::cpu::encode_block(values.const_data_ptr<float>(), /*is_signed=*/false,
                                 on_host.mutable_data_ptr<uint8_t>()) == largest.item<float>());
    check(on_host);
    CHECK(on_host.equal(codes));
  }
}

TEST_CASE("host AdamW with bf16 and 8-bit moments equals the reference") {
  at::manual_seed(32);
  for (const auto moments : {at::kBFloat16, at::kByte}) {
    for (const auto gradient : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t numel : {1, 63, 256, 1000, 70'001}) {
        INFO(moments << " " << gradient << ", " << numel << " elements");
        const State a = state_of(numel, moments, gradient);
        for (int step = 1; step <= 3; ++step) {
          const State b = a.copy();
          const ops::AdamWRange fast = a.range(), plain = b.range();
          ops::adamw_update({&fast, 1}, kOptions, at_step(step));
          ops::reference::adamw_update({&plain, 1}, kOptions, at_step(step));
          const at::Tensor error = (a.parameter - b.parameter).abs();
          CHECK((error / b.parameter.abs().clamp_min(0.01)).max().item<double>() < 2e-6);
          // A tie may round to either neighbour.
          CHECK(a.exp_avg.ne(b.exp_avg).sum().item<double>() <= 1 + 1e-3 * double(numel));
          CHECK(a.exp_avg_sq.ne(b.exp_avg_sq).sum().item<double>() <= 1 + 1e-3 * double(numel));
          if (a.largest.defined()) CHECK(at::allclose(a.largest, b.largest, 1e-6, 0));
          if (a.low.defined()) CHECK(a.low.equal(a.parameter.to(gradient)));
        }
        const State before = a.copy();
        const ops::AdamWRange range = a.range();
        a.gradient.fill_(NAN);
        ops::adamw_update({&range, 1}, kOptions, at_step(4, /*skip=*/1));
        check_same_bits(a, before);
      }
    }
  }
}

TEST_CASE("bits of kept moments depend neither on threads, whole blocks nor instruction sets") {
  at::manual_seed(33);
  constexpr int64_t kNumel = 100'003;
  for (const auto moments : {at::kBFloat16, at::kByte}) {
    const State before = state_of(kNumel, moments, at::kBFloat16);
    const auto steps = [&](int64_t piece) {
      State run = before.copy();
      std::vector<ops::AdamWRange> ranges;
      for (int64_t first = 0; first < kNumel; first += piece) {
        ranges.push_back(run.range(first, std::min(piece, kNumel - first)));
      }
      for (int step = 1; step <= 2; ++step) ops::adamw_update(ranges, kOptions, at_step(step));
      return run;
    };
    const State whole = steps(kNumel);
    CHECK_FALSE(whole.exp_avg.equal(before.exp_avg));
    const int threads = at::get_num_threads();
    for (const int count : {1, 3}) {
      at::set_num_threads(count);
      check_same_bits(steps(kNumel), whole);
    }
    at::set_num_threads(threads);
    for (const int64_t piece : {256, 4096, 33'280}) check_same_bits(steps(piece), whole);
    CHECK(test::with_every_target([&] { check_same_bits(steps(1024), whole); }) >= 2);
  }
}
