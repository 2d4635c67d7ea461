// SPDX-License-Identifier: MIT
// AdamW with moments in bf16 and in 8 bits beside a plain loop of the same quantization.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "tessera/core/error.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/sgd.h"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

constexpr double kRate = 0.01, kDecay = 0.1, kScale = 0.5;

at::Tensor scalar(double value) { return at::full({}, value, at::kFloat); }

// bitsandbytes' dynamic map in the order of its values.
std::vector<float> dynamic_map(bool is_signed) {
  std::vector<float> map{0, 1};
  for (int i = 0; i < 7; ++i) {
    const int items = is_signed ? 1 << i : 2 << i;
    for (int item = 0; item < items; ++item) {
      const double value = std::pow(10.0, i - 6) * (0.1 + 0.9 * (item + 0.5) / items);
      map.push_back(static_cast<float>(value));
      if (is_signed) map.push_back(static_cast<float>(-value));
    }
  }
  std::ranges::sort(map);
  return map;
}

// What is left of a moment: each block of 256 to the nearest values of the map.
void quantize(std::vector<float>& values, bool is_signed) {
  static const std::vector<float> maps[] = {dynamic_map(false), dynamic_map(true)};
  const std::vector<float>& map = maps[is_signed ? 1 : 0];
  for (size_t begin = 0; begin < values.size(); begin += 256) {
    const size_t end = std::min(begin + 256, values.size());
    float most = 0;
    for (size_t i = begin; i < end; ++i) most = std::max(most, std::abs(values[i]));
    for (size_t i = begin; i < end && most > 0; ++i) {
      const float value = values[i] / most;
      const float* nearest = map.data();
      for (const float& other : map) {
        if (std::abs(other - value) < std::abs(*nearest - value)) nearest = &other;
      }
      values[i] = *nearest * most;
    }
  }
}

void round_to_bf16(std::vector<float>& values) {
  for (float& value : values) value = static_cast<float>(c10::BFloat16(value));
}

// fp32 arithmetic, one element after the other.
struct Plain {
  std::vector<float> p, m, v;

  explicit Plain(const at::Tensor& parameter)
      : p(parameter.const_data_ptr<float>(), parameter.const_data_ptr<float>() + parameter.numel()),
        m(p.size()),
        v(p.size()) {}

  void step(const at::Tensor& gradient, int t, MomentsDtype moments) {
    const auto* g = gradient.const_data_ptr<float>();
    const auto root = static_cast<float>(1 / std::sqrt(1 - std::pow(0.999, t)));
    const auto size = static_cast<float>(kRate / (1 - std::pow(0.9, t)));
    const auto keep = static_cast<float>(1 - kRate * kDecay);
    for (size_t i = 0; i < p.size(); ++i) {
      const float scaled = g[i] * static_cast<float>(kScale);
      m[i] = m[i] + static_cast<float>(1 - 0.9) * (scaled - m[i]);
      v[i] = v[i] * 0.999F + scaled * scaled * static_cast<float>(1 - 0.999);
      p[i] = p[i] * keep - m[i] / (std::sqrt(v[i]) * root + 1e-8F) * size;
    }
    if (moments == MomentsDtype::kInt8) {
      quantize(m, true);
      quantize(v, false);
    } else if (moments == MomentsDtype::kBFloat16) {
      round_to_bf16(m);
      round_to_bf16(v);
    }
  }
  double error(const at::Tensor& parameter) const {
    double most = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      const double other = parameter[static_cast<int64_t>(i)].item<double>();
      most = std::max(most, std::abs(p[i] - other) / std::max(1.0, std::abs(other)));
    }
    return most;
  }
};

}  // namespace

TEST_CASE("20 steps of AdamW with kept moments follow a plain loop") {
  at::manual_seed(41);
  for (const auto moments :
       {MomentsDtype::kFloat32, MomentsDtype::kBFloat16, MomentsDtype::kInt8}) {
    const at::Tensor parameter = at::randn({5003}), gradient = at::zeros({5003});
    Plain plain(parameter);
    const auto optimizer = make_adamw({.weight_decay = kDecay, .moments = moments})(
        {{.parameter = parameter, .gradient = gradient}});
    for (int t = 1; t <= 20; ++t) {
      gradient.copy_(at::randn({5003}) * at::rand({5003}).pow(4));
      optimizer->begin_step({scalar(kRate), scalar(kScale), {}});
      optimizer->update(0, 1);
      plain.step(gradient, t, moments);
    }
    CHECK(plain.error(parameter) < 1e-6);
  }
}

TEST_CASE("kept moments say their formats, rules and bytes") {
  const StateNeeds fp32 = state_needs(make_adamw({}));
  CHECK(fp32.rules == StateRules{});
  CHECK(fp32.bytes == 8);
  const StateNeeds bf16 = state_needs(make_adamw({.moments = MomentsDtype::kBFloat16}));
  CHECK(bf16.rules == StateRules{});
  CHECK(bf16.bytes == 4);
  const OptimizerFactory in_8_bits = make_adamw({.moments = MomentsDtype::kInt8});
  const StateNeeds int8 = state_needs(in_8_bits);
  CHECK(int8.rules == StateRules{.block = 256, .small_numel = 4096});
  CHECK((fp32.splits_masters && bf16.splits_masters && int8.splits_masters));
  CHECK_FALSE(state_needs(make_sgd({})).splits_masters);
  CHECK(int8.bytes == 2 + 8.0 / 256);
  CHECK(int8.small_bytes == 8);
  CHECK(state_needs(make_sgd({.momentum = 0.9})).bytes == 4);

  const at::Tensor large = at::zeros({5000}), small = at::zeros({100});
  const auto optimizer = in_8_bits({{.parameter = large, .gradient = large},
                                    {.parameter = small, .gradient = small, .small = true}});
  CHECK(optimizer->state_bytes() == 2 * 5000 + 2 * 4 * 20 + 8 * 100);
  CHECK(optimizer->state(0).size() == 4);
  CHECK(optimizer->state(0)[0].second.scalar_type() == at::kByte);
  CHECK(optimizer->state(0)[2].first == "exp_avg_absmax");
  CHECK(optimizer->state(0)[2].second.numel() == 20);
  CHECK(optimizer->state(1).size() == 2);
  CHECK(optimizer->state(1)[0].second.scalar_type() == at::kFloat);
}

TEST_CASE("8-bit moments refuse pieces that begin inside a block") {
  const std::vector<PlacedParameter> placed = {{"a.w", {100, 100}, 0, 10'000}};
  OptimizerRange range{.parameter = at::zeros({1024}),
                       .gradient = at::zeros({1024}),
                       .placed = placed,
                       .begin = 2048};
  const OptimizerFactory factory = make_adamw({.moments = MomentsDtype::kInt8});
  CHECK_NOTHROW(factory({range}));
  range.begin = 2048 + 64;
  CHECK_THROWS_WITH(factory({range}), test::contains("a.w is cut at element 2112"));
  CHECK_THROWS_AS(make_adamw({.min_8bit_size = -1}), Error);
}
