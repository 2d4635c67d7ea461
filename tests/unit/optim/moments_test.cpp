// SPDX-License-Identifier: MIT
// AdamW with bf16 and 8-bit moments against a plain loop with the same quantisation.
#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <string>

#include "tessera/core/error.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/sgd.h"
#include "tests/support/scalar.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using tessera::test::scalar;

namespace {

constexpr double kRate = 0.01, kDecay = 0.1, kScale = 0.5;

// bitsandbytes' dynamic map in ascending order.
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

// Quantises a moment: each block of 256 to the map's nearest values. A nonzero second moment stays
// nonzero.
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
      const bool lost = !is_signed && values[i] > 0 && *nearest == 0;
      values[i] = (lost ? map[1] : *nearest) * most;
    }
  }
}

void round_to_bf16(std::vector<float>& values) {
  for (float& value : values) value = static_cast<float>(c10::BFloat16(value));
}

// Rounds down after adding the step's dither: its multiple of the golden ratio modulo 1, of a step
// between bf16 values, in units of 2^-16.
void dither_to_bf16(std::vector<float>& values, int step) {
  const double turns = std::fmod(step * (2654435769.0 / 4294967296.0), 1);
  const auto dither = static_cast<uint32_t>(turns * 65536);
  for (float& value : values) {
    const uint32_t bits = std::bit_cast<uint32_t>(value) + dither;
    value = std::bit_cast<float>(bits / 65536 * 65536);
  }
}

// fp32 arithmetic, element by element.
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
      dither_to_bf16(v, t);
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

// Upper bound of exact Adam's step t over the learning rate. With c_k = beta1^k / sqrt (beta2^k),
// Cauchy and Schwarz: |m| <= (1 - beta1) / sqrt(1 - beta2) * sqrt(sum of c_k^2) * sqrt(v). 1 in the
// first step, 7.27 in the end.
double bound_of_exact(int t) {
  double squares = 0;
  for (int k = 0; k < t; ++k) squares += std::pow(0.9 * 0.9 / 0.999, k);
  const double averages = (1 - 0.9) / (1 - std::pow(0.9, t));
  return averages * std::sqrt((1 - std::pow(0.999, t)) / (1 - 0.999) * squares);
}

// Rounding to a code at most doubles a first moment and leaves 0.534 of a second one. (The codes 0
// and 5.5e-7, and 7.75e-7 and 2.125e-6, are the farthest apart.) bf16 changes much less.
const double kRounding = 2 / std::sqrt(0.534);

// Gradients of a block's elements, with magnitude 1 in its first element and down to 1e-8 in
// others.
using Gradients = std::function<double(int64_t element, double magnitude, int step)>;
const std::map<std::string, Gradients> kGradients{
    {"constant", [](int64_t, double magnitude, int) { return magnitude; }},
    {"stopping after a step",
     [](int64_t i, double magnitude, int t) { return i == 0 || t <= 1 ? magnitude : 0; }},
    {"stopping after 40 steps",
     [](int64_t i, double magnitude, int t) { return i == 0 || t <= 40 ? magnitude : 0; }},
    {"all stopping", [](int64_t, double magnitude, int t) { return t <= 3 ? magnitude : 0; }},
    {"changing signs",
     [](int64_t i, double magnitude, int t) { return (i * t) % 7 < 3 ? magnitude : -magnitude; }},
    {"in bursts",
     [](int64_t i, double magnitude, int t) { return i == 0 || (i + t) % 37 < 8 ? magnitude : 0; }},
    {"beside a growing one",
     [](int64_t i, double magnitude, int t) { return i == 0 ? std::pow(1.1, t) : magnitude; }},
    {"growing", [](int64_t i, double magnitude,
                   int t) { return magnitude * (i == 0 ? 1 : std::pow(1.1, t)); }},
};

}  // namespace

TEST_CASE("no element moves farther in a step than Adam allows, however its block differs") {
  constexpr int64_t kCount = 3 * 256 + 40;
  constexpr int kSteps = 100;
  at::manual_seed(43);
  const at::Tensor magnitudes = at::pow(10.0, -8 * at::rand({kCount}, at::kDouble));
  for (const int64_t block : {0, 1, 2, 3}) magnitudes[block * 256].fill_(1);
  for (const auto moments :
       {MomentsDtype::kFloat32, MomentsDtype::kBFloat16, MomentsDtype::kInt8}) {
    for (const bool decoupled : {true, false}) {
      for (const auto& [name, gradients] : kGradients) {
        INFO("moments " << int(moments) << ", gradients " << name);
        const at::Tensor parameter = at::zeros({kCount}), gradient = at::zeros({kCount});
        const auto optimizer = make_adamw({.adam_w_mode = decoupled, .moments = moments})(
            {{.parameter = parameter, .gradient = gradient}});
        double worst = 0;
        for (int t = 1; t <= kSteps; ++t) {
          for (int64_t i = 0; i < kCount; ++i) {
            gradient.mutable_data_ptr<float>()[i] =
                static_cast<float>(gradients(i % 256, magnitudes.const_data_ptr<double>()[i], t));
          }
          parameter.zero_();
          optimizer->begin_step({scalar(1), {}, {}});
          optimizer->update(0, 1);
          const double moved = parameter.abs().max().item<double>();
          worst = std::max(worst, moved / bound_of_exact(t));
        }
        CHECK(worst <= (moments == MomentsDtype::kFloat32 ? 1.001 : kRounding));
      }
    }
  }
}

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

// Nearest rounding would stop at 0.28 of a constant gradient's square, and never decay.
TEST_CASE("second moments in bf16 follow their exact values over 2,000 steps") {
  constexpr int64_t kCount = 300;
  constexpr int kSteps = 2000;
  for (const double beta2 : {0.999, 0.95, 0.9999}) {
    for (const std::string kind : {"constant", "random", "smaller", "rare", "periodic"}) {
      INFO("beta2 " << beta2 << ", gradients " << kind);
      at::manual_seed(44);
      const at::Tensor magnitudes = at::pow(10.0, -8 * at::rand({kCount}));
      const at::Tensor parameter = at::zeros({kCount}), gradient = at::zeros({kCount});
      const auto optimizer = make_adamw({.beta2 = beta2, .moments = MomentsDtype::kBFloat16})(
          {{.parameter = parameter, .gradient = gradient}});
      at::Tensor exact = at::zeros({kCount}, at::kDouble);
      double common = 0, own = 0;
      for (int t = 1; t <= kSteps; ++t) {
        at::Tensor factor = at::ones({kCount});
        if (kind == "random") factor = at::randn({kCount});
        if (kind == "smaller" && t > kSteps / 4) factor.fill_(0.2);
        if (kind == "rare") factor = at::rand({kCount}).lt(0.02).to(at::kFloat);
        if (kind == "periodic") factor.fill_(t % 8 == 0 ? 3 : 0.3);
        gradient.copy_(magnitudes * factor);
        exact = exact * beta2 + gradient.to(at::kDouble).square() * (1 - beta2);
        optimizer->begin_step({scalar(1e-6), {}, {}});
        optimizer->update(0, 1);
        if (t < kSteps / 2) continue;
        const at::Tensor kept = optimizer->state(0)[1].second.to(at::kDouble);
        const at::Tensor error = kept / exact.clamp_min(1e-30) - 1;
        common = std::max(common, std::abs(error.mean().item<double>()));
        own = std::max(own, error.square().mean().sqrt().item<double>());
      }
      CHECK(common < 0.03);
      CHECK(own < 0.06);
    }
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
  const std::vector<ParameterRange> placed = {{"a.w", {100, 100}, 0, 10'000}};
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
