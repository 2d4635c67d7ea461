// SPDX-License-Identifier: MIT
#include "benchmarks/ops/triad.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "benchmarks/ops/triad.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::benchmarks::HWY_NAMESPACE {
namespace {

void triad_target(float* a, const float* b, const float* c, int64_t count) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<float> tag;
  const auto scale = hn::Set(tag, 3.0F);
  for (int64_t i = 0; i < count; i += static_cast<int64_t>(hn::Lanes(tag))) {
    hn::Stream(hn::MulAdd(scale, hn::Load(tag, c + i), hn::Load(tag, b + i)), tag, a + i);
  }
  hwy::FlushStream();
}

}  // namespace
}  // namespace tessera::benchmarks::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::benchmarks {
HWY_EXPORT(triad_target);
void triad(float* a, const float* b, const float* c, int64_t count) {
  HWY_DYNAMIC_DISPATCH(triad_target)(a, b, c, count);
}
}  // namespace tessera::benchmarks
#endif  // HWY_ONCE
