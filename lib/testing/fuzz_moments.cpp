// SPDX-License-Identifier: MIT
#include "lib/testing/fuzz_moments.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "lib/testing/fuzz_difference.h"
#include "tessera/core/error.h"

namespace tessera::testing {
namespace {

constexpr int64_t kBlock = 256;
// Roundings of the division by the scale, of the map's values, and of its midpoints.
constexpr double kCodeRoundings = 4;

// bitsandbytes' dynamic map in ascending order; fp32 numbers in fp64.
at::Tensor sorted_map(bool is_signed) {
  std::vector<double> map{0, 1};
  for (int i = 0; i < 7; ++i) {
    const int items = is_signed ? 1 << i : 2 << i;
    for (int item = 0; item < items; ++item) {
      const double magnitude = std::pow(10.0, i - 6) * (0.1 + 0.9 * (item + 0.5) / items);
      map.push_back(static_cast<float>(magnitude));
      if (is_signed) map.push_back(-static_cast<float>(magnitude));
    }
  }
  std::ranges::sort(map);
  return at::tensor(map, at::kDouble);
}

// A moment of one parameter, 1-D.
struct Kept {
  at::Tensor values;     // fp64, as the next step reads them
  at::Tensor tolerance;  // allowed difference from the exact values
};

Kept in_bf16(const at::Tensor& shown, const at::Tensor& exact, const at::Tensor& slack) {
  const at::Tensor nearest = exact.to(at::kFloat).to(at::kBFloat16).to(at::kDouble);
  return {shown.to(at::kDouble), (nearest - exact).abs() + 2 * slack};
}

// The golden ratio's multiples modulo 1, in 2^-16 of a step between bf16 values; rounding down adds
// it first. fp64: the significand of a bf16 value has 8 bits.
at::Tensor dithered(const at::Tensor& exact, int64_t step) {
  const int64_t turn = step * 2654435769 % (int64_t{1} << 32);
  const double share = static_cast<double>(turn / 65536) / 65536;
  const auto [fraction, exponent] = at::frexp(exact.clamp_min(0));
  // The least normal number has the exponent -125 here; steps below it are equal.
  const at::Tensor scale =
      at::ldexp(at::ones_like(exact), exponent.clamp_min(-125).to(at::kDouble) - 8);
  return (exact.clamp_min(0) / scale + share).floor() * scale;
}

Kept in_dithered_bf16(const at::Tensor& shown, const at::Tensor& exact, const at::Tensor& slack,
                      int64_t step, const std::string& what) {
  const at::Tensor values = shown.to(at::kDouble);
  const at::Tensor least = dithered(exact - 2 * slack, step);
  const at::Tensor most = dithered(exact + 2 * slack, step);
  const at::Tensor off = values.lt(least).logical_or(values.gt(most)).nonzero();
  const int64_t first = off.numel() == 0 ? 0 : off.flatten()[0].item<int64_t>();
  require(off.numel() == 0, what, "[", first, "] is ", values[first].item<double>(), " after step ",
          step, ", expected ", least[first].item<double>(), " to ", most[first].item<double>(),
          " of ", exact[first].item<double>());
  return {values, (values - exact).abs()};
}

struct Codes {
  at::Tensor codes, largest;  // uint8 [n]; fp32 block scales
  std::string what;
};

Kept in_8_bits(const Codes& shown, const at::Tensor& exact, const at::Tensor& slack,
               bool is_signed) {
  static const at::Tensor maps[] = {sorted_map(false), sorted_map(true)};
  const at::Tensor& map = maps[is_signed ? 1 : 0];
  const int64_t numel = exact.numel(), blocks = (numel + kBlock - 1) / kBlock;
  require(shown.largest.numel() == blocks, shown.what, " has ", shown.largest.numel(),
          " blocks, expected ", blocks);
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t count = std::min(kBlock, numel - b * kBlock);
    const double expected = exact.narrow(0, b * kBlock, count).abs().max().item<double>();
    const double most = shown.largest[b].item<double>();
    require(std::abs(most - expected) <= slack.narrow(0, b * kBlock, count).max().item<double>(),
            "block ", b, " of ", shown.what, " has the largest magnitude ", most, ", expected ",
            expected);
  }
  const at::Tensor block = at::arange(numel, at::kLong).div(kBlock, "floor");
  const at::Tensor scale = shown.largest.to(at::kDouble).index_select(0, block);
  const int64_t zero = is_signed ? 127 : 0;  // index of zero, from which codes count
  const at::Tensor place = (shown.codes.to(at::kLong) + zero).remainder(256);
  const at::Tensor values = (map.index_select(0, place) * scale).to(at::kFloat).to(at::kDouble);
  const at::Tensor share = at::where(scale.eq(0), 0.0, exact / scale);
  const at::Tensor above = at::searchsorted(map, share).clamp(1, 255);
  at::Tensor off = at::minimum((map.index_select(0, above) - share).abs(),
                               (map.index_select(0, above - 1) - share).abs());
  if (!is_signed) {  // nonzero second moments stay nonzero
    const at::Tensor lost = exact.gt(2 * slack).logical_and(values.eq(0)).nonzero();
    require(lost.numel() == 0, shown.what, " keeps zeros in place of ", lost.size(0),
            " second moments, of which the first stands at ",
            lost.numel() == 0 ? 0 : lost.flatten()[0].item<int64_t>());
    off = at::where(exact.gt(0).logical_and(share.lt(map[1])), map[1] - share, off);
  }
  return {values, (off + kCodeRoundings * 0x1p-24) * scale + 2 * slack};
}

const at::Tensor& tensor_of(const Named& shown, const std::string& name, at::ScalarType dtype) {
  require(shown.contains(name), "state ", name, " is missing");
  const at::Tensor& tensor = shown.at(name);
  require(tensor.scalar_type() == dtype, "state ", name, " is ", tensor.scalar_type(),
          ", expected ", dtype);
  return tensor;
}

}  // namespace

MomentsDtype moments_of(const FuzzCase& c) {
  if (c.moments == "fp32") return MomentsDtype::kFloat32;
  if (c.moments == "bf16") return MomentsDtype::kBFloat16;
  check(c.moments == "int8", ErrorCode::kInvalidArgument, "fuzz: no moments are in ", c.moments);
  return MomentsDtype::kInt8;
}

double check_moments(const FuzzCase& c, Oracle& oracle, const Named& shown, const std::string& at) {
  double worst = 0;
  Oracle::Moments moments = oracle.moments();
  for (const auto& place : oracle.entries()) {
    if (place.numel == 0) continue;
    const bool coded = c.moments == "int8" && !place.fp32_state && place.numel >= c.min_8bit_size;
    const auto dtype = coded ? at::kByte : c.moments == "bf16" ? at::kBFloat16 : at::kFloat;
    for (const bool is_signed : {true, false}) {
      const std::string name = place.name + (is_signed ? " exp_avg" : " exp_avg_sq");
      const auto part = [&](const at::Tensor& flat) {
        return flat.narrow(0, place.offset, place.numel);
      };
      const at::Tensor exact = part(is_signed ? moments.exp_avg : moments.exp_avg_sq);
      const at::Tensor slack = part(is_signed ? moments.exp_avg_slack : moments.exp_avg_sq_slack);
      const at::Tensor flat = tensor_of(shown, name, dtype).flatten();
      Kept kept{flat.to(at::kDouble), slack};
      if (c.moments == "bf16") {
        kept = is_signed ? in_bf16(flat, exact, slack)
                         : in_dithered_bf16(flat, exact, slack, moments.step, concat(name, at));
      }
      if (coded) {
        const at::Tensor& largest = tensor_of(shown, name + "_absmax", at::kFloat);
        kept = in_8_bits({flat, largest.flatten(), concat(name, at)}, exact, slack, is_signed);
      }
      const at::Tensor share = ((kept.values - exact).abs() / (kept.tolerance + 1e-300));
      const auto index = share.nan_to_num(1e300).argmax().item<int64_t>();
      const double largest = share.nan_to_num(1e300)[index].item<double>();
      // Half a step of the format is expected; only the excess counts as rounding error.
      require(largest <= 1, "state ", name, "[", index, "]", at, " is ",
              kept.values[index].item<double>(), ", expected ", exact[index].item<double>(),
              " kept as ", c.moments);
      if (dtype == at::kFloat) worst = std::max(worst, largest);
      exact.copy_(kept.values);
    }
  }
  oracle.adopt_moments(moments);
  return worst;
}

void check_moments_unchanged(const Named& shown, const Named& before, const std::string& at) {
  if (!before.empty()) return require_bits("state of a skipped step" + at, shown, before);
  for (const auto& [name, tensor] : shown) {
    require(!tensor.ne(0).any().item<bool>(), "state ", name, at, " is not zero");
  }
}

}  // namespace tessera::testing
