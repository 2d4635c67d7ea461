// SPDX-License-Identifier: MIT
// Conversion of 8-bit moments to fp32 and back, with the widest vectors of the machine.
#include <cstring>

#include "lib/ops/cpu/kernels.h"
#include "lib/ops/moment_map.h"

// Targets: AVX2, AVX-512 and the baseline.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/ops/cpu/moments.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::ops::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using M32 = hn::ScalableTag<float>;
constexpr M32 kValues;
constexpr hn::RebindToSigned<M32> kPlaces;
constexpr hn::Rebind<uint8_t, M32> kCodes;

int64_t step() { return static_cast<int64_t>(hn::Lanes(kValues)); }

void decode_target(const uint8_t* codes, float largest, const MomentMap& map, float* values) {
  const auto scale = hn::Set(kValues, largest);
  for (int64_t i = 0; i < kMomentBlock; i += step()) {
    const auto code = hn::PromoteTo(kPlaces, hn::LoadU(kCodes, codes + i));
    hn::StoreU(hn::GatherIndex(kValues, map.value_of, code) * scale, kValues, values + i);
  }
}

float encode_target(const float* values, const MomentMap& map, uint8_t* codes) {
  auto most = hn::Zero(kValues);
  for (int64_t i = 0; i < kMomentBlock; i += step()) {
    most = hn::Max(most, hn::Abs(hn::LoadU(kValues, values + i)));
  }
  const float largest = hn::GetLane(hn::MaxOfLanes(kValues, most));
  if (largest == 0) {
    std::memset(codes, 0, kMomentBlock);
    return 0;
  }
  const auto scale = hn::Set(kValues, largest);
  for (int64_t i = 0; i < kMomentBlock; i += step()) {
    const auto unscaled = hn::LoadU(kValues, values + i), value = unscaled / scale;
    auto place = hn::Zero(kPlaces);  // number of midpoints below
    for (int half = kMomentCodes / 2; half > 0; half /= 2) {
      const auto at = place + hn::Set(kPlaces, half - 1);
      const auto below = hn::GatherIndex(kValues, map.middle, at) < value;
      place = place + hn::IfThenElseZero(hn::RebindMask(kPlaces, below), hn::Set(kPlaces, half));
    }
    const auto positive = hn::RebindMask(kPlaces, unscaled > hn::Zero(kValues));
    place = hn::Max(place, hn::IfThenElseZero(positive, hn::Set(kPlaces, 1)));
    const auto code = hn::And(place - hn::Set(kPlaces, map.zero), hn::Set(kPlaces, 0xFF));
    hn::StoreU(hn::DemoteTo(kCodes, code), kCodes, codes + i);
  }
  return largest;
}

}  // namespace
}  // namespace tessera::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::ops::cpu {

HWY_EXPORT(decode_target);
HWY_EXPORT(encode_target);

void decode_block(const uint8_t* codes, float largest, bool is_signed, float* values) {
  HWY_DYNAMIC_DISPATCH(decode_target)
  (codes, largest, is_signed ? kSignedMap : kUnsignedMap, values);
}

float encode_block(const float* values, bool is_signed, uint8_t* codes) {
  return HWY_DYNAMIC_DISPATCH(encode_target)(values, is_signed ? kSignedMap : kUnsignedMap, codes);
}

}  // namespace tessera::ops::cpu
#endif  // HWY_ONCE
