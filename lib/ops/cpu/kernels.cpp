// SPDX-License-Identifier: MIT
#include "lib/ops/cpu/kernels.h"

#include <cstring>
#include <type_traits>

// Targets: AVX2, AVX-512 and the baseline.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/ops/cpu/kernels.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tessera::ops::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D32 = hn::ScalableTag<float>;
using V = hn::Vec<D32>;
constexpr D32 kFloats;
constexpr hn::RebindToUnsigned<D32> kBits;
constexpr hn::RebindToSigned<D32> kInts;
constexpr hn::Rebind<uint16_t, D32> kHalves;
constexpr hn::Rebind<int16_t, D32> kShorts;

struct Float {
  using Element = float;
  static V load(const Element* from) { return hn::LoadU(kFloats, from); }
  static void store(V value, Element* to) { hn::StoreU(value, kFloats, to); }
  static void stream(V value, Element* to) { hn::Stream(value, kFloats, to); }
};

template <typename Format>
struct SixteenBits {
  using Element = uint16_t;
  static V load(const Element* from) {
    return Format::widen(hn::PromoteTo(kBits, hn::LoadU(kHalves, from)));
  }
  static auto narrow(V value) {
    return hn::DemoteTo(kHalves, hn::BitCast(kInts, Format::round(value)));
  }
  static void store(V value, Element* to) { hn::StoreU(narrow(value), kHalves, to); }
  static void stream(V value, Element* to) {
    if constexpr (hn::MaxLanes(kHalves) * sizeof(Element) >= 16) {
      hn::Stream(narrow(value), kHalves, to);
    } else {
      store(value, to);
    }
  }
};

// Both conversions work on the bits. So rounding to nearest even, infinities, NaN and subnormal
// numbers are equal on every machine.
struct BFloat16Format {
  static V widen(hn::Vec<decltype(kBits)> bits) {
    return hn::BitCast(kFloats, hn::ShiftLeft<16>(bits));
  }
  static auto round(V value) {
    const auto bits = hn::BitCast(kBits, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(kBits, 1));
    const auto rounded = hn::ShiftRight<16>(bits + odd + hn::Set(kBits, 0x7FFF));
    return hn::IfThenElse(hn::RebindMask(kBits, hn::IsNaN(value)), hn::Set(kBits, 0x7FC0), rounded);
  }
};

struct HalfFormat {
  // A multiplication rebiases the exponent, which also normalises subnormal numbers.
  static V widen(hn::Vec<decltype(kBits)> bits) {
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(kBits, 0x8000)));
    const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(kBits, 0x7FFF)));
    const V scaled = hn::BitCast(kFloats, magnitude) * hn::Set(kFloats, 0x1p112F);
    const auto special = magnitude > hn::Set(kBits, (0x7C00U << 13) - 1);
    const auto value = hn::IfThenElse(special, hn::Or(magnitude, hn::Set(kBits, 0x7F800000)),
                                      hn::BitCast(kBits, scaled));
    return hn::BitCast(kFloats, hn::Or(value, sign));
  }
  // Adding the power of two whose last place equals the half's last place makes the addition round.
  static auto round(V value) {
    const auto bits = hn::BitCast(kBits, value);
    const auto magnitude = hn::And(bits, hn::Set(kBits, 0x7FFFFFFF));
    const auto exponent = hn::And(magnitude, hn::Set(kBits, 0x7F800000));
    const auto least = hn::Set(kBits, (127U - 14U) << 23);  // smallest normal half
    const auto base = hn::Max(exponent, least) + hn::Set(kBits, 13U << 23);
    const V sum = hn::BitCast(kFloats, magnitude) + hn::BitCast(kFloats, base);
    // sum = 2^(e + 13) + m 2^(e - 10): its last ten bits are the half's, counted from exponent e.
    const auto count = hn::BitCast(kBits, sum) - base;
    const auto half = hn::ShiftRight<13>(base - hn::Set(kBits, (13U + 113U) << 23)) + count;
    const auto finite = hn::Min(half, hn::Set(kBits, 0x7C00));
    const auto overflow = magnitude > hn::Set(kBits, 0x477FFFFF);  // from 65536 on
    const auto nan = magnitude > hn::Set(kBits, 0x7F800000);
    auto result = hn::IfThenElse(overflow, hn::Set(kBits, 0x7C00), finite);
    result = hn::IfThenElse(nan, hn::Set(kBits, 0x7E00), result);
    return hn::Or(result, hn::ShiftRight<16>(hn::And(bits, hn::Set(kBits, 0x80000000))));
  }
};

using BFloat16 = SixteenBits<BFloat16Format>;
using Half = SixteenBits<HalfFormat>;

struct None {
  using Element = char;
  static void store(V, Element*) {}
  static void stream(V, Element*) {}
};

// The low 16 bits, signed.
auto remainder_of(V value) {
  return hn::ShiftRight<16>(hn::ShiftLeft<16>(hn::BitCast(kInts, value)));
}

// As in tessera/core/split_master.h.
V settled(V value) {
  const auto bits = hn::BitCast(kInts, value);
  const auto middle = hn::And(bits, hn::Set(kInts, 0x1FFFF)) == hn::Set(kInts, 0x8000);
  return hn::BitCast(kFloats, bits + hn::VecFromMask(kInts, middle));
}
V joined(V rounded, const int16_t* remainder) {
  const auto bits = hn::PromoteTo(kInts, hn::LoadU(kShorts, remainder));
  return hn::BitCast(kFloats, hn::BitCast(kInts, rounded) + bits);
}

template <typename G, typename L, typename M>
struct Arrays {
  float* parameter;
  typename M::Element *exp_avg, *exp_avg_sq;
  const typename G::Element* gradient;
  typename L::Element* low;
  int16_t* remainder;
};

// kStreamed: whole, with streaming stores of low_precision
enum class Masters { kWhole, kStreamed, kSplit };

// [Note: dithered second moments] in adamw_step.h.
void store_dithered(V value, hn::Vec<decltype(kBits)>, float* to) { Float::store(value, to); }
void store_dithered(V value, hn::Vec<decltype(kBits)> dither, uint16_t* to) {
  const auto sum = hn::ShiftRight<16>(hn::BitCast(kBits, value) + dither);
  const auto nan = hn::RebindMask(kBits, hn::IsNaN(value));
  const auto kept = hn::IfThenElse(nan, hn::Set(kBits, 0x7FC0), sum);
  hn::StoreU(hn::DemoteTo(kHalves, hn::BitCast(kInts, kept)), kHalves, to);
}

// count: a multiple of the vector length.
template <Masters kMasters, typename G, typename L, typename M>
void update(const Arrays<G, L, M>& a, int64_t count, const AdamWConstants& c) {
  const V scale = hn::Set(kFloats, c.gradient_scale), keep = hn::Set(kFloats, c.keep),
          rate1 = hn::Set(kFloats, c.one_minus_beta1), beta2 = hn::Set(kFloats, c.beta2),
          rate2 = hn::Set(kFloats, c.one_minus_beta2), root = hn::Set(kFloats, c.inverse_root),
          epsilon = hn::Set(kFloats, c.epsilon), step = hn::Set(kFloats, c.step_size),
          l2 = hn::Set(kFloats, c.l2);
  const auto dither = hn::Set(kBits, c.dither);
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  for (int64_t i = 0; i < count; i += lanes) {
    V g = G::load(a.gradient + i) * scale, p0;
    if constexpr (kMasters == Masters::kSplit) {
      p0 = joined(L::load(a.low + i), a.remainder + i);
    } else {
      p0 = Float::load(a.parameter + i);
    }
    if (c.l2 != 0) g = g + p0 * l2;
    const V m0 = M::load(a.exp_avg + i);
    const V m = m0 + rate1 * (g - m0);
    const V v = M::load(a.exp_avg_sq + i) * beta2 + g * g * rate2;
    const V direction = m / (hn::Sqrt(v) * root + epsilon);
    V p = p0 * keep - direction * step;
    if constexpr (std::is_same_v<L, BFloat16>) p = settled(p);
    M::store(m, a.exp_avg + i);
    store_dithered(v, dither, a.exp_avg_sq + i);
    if constexpr (kMasters == Masters::kSplit) {
      hn::StoreU(hn::DemoteTo(kShorts, remainder_of(p)), kShorts, a.remainder + i);
    } else {
      Float::store(p, a.parameter + i);
    }
    if constexpr (kMasters == Masters::kStreamed) {
      L::stream(p, a.low + i);
    } else {
      L::store(p, a.low + i);
    }
  }
}

template <typename T>
void copy(T* to, const T* from, int64_t count) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
}

template <bool kSplit, typename G, typename L, typename M>
void adamw_typed(const AdamWArrays& raw, int64_t count, const AdamWConstants& c) {
  using Low = typename L::Element;
  using Moment = typename M::Element;
  const Arrays<G, L, M> a{raw.parameter,
                          static_cast<Moment*>(raw.exp_avg),
                          static_cast<Moment*>(raw.exp_avg_sq),
                          static_cast<const typename G::Element*>(raw.gradient),
                          static_cast<Low*>(raw.low_precision),
                          raw.remainder};
  constexpr Masters kStored = kSplit ? Masters::kSplit : Masters::kWhole;
  const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
  const int64_t whole = count / lanes * lanes;
  const auto vector_bytes = static_cast<uintptr_t>(lanes) * sizeof(Low);
  if (!kSplit && reinterpret_cast<uintptr_t>(a.low) % vector_bytes == 0) {
    update<kSplit ? Masters::kSplit : Masters::kStreamed>(a, whole, c);
    hwy::FlushStream();
  } else {
    update<kStored>(a, whole, c);
  }
  const int64_t rest = count - whole;
  if (rest == 0) return;
  // The remainder uses a full vector, so that an element's bits do not depend on its position.
  constexpr size_t kMost = hn::MaxLanes(kFloats);
  HWY_ALIGN float p[kMost] = {};
  HWY_ALIGN Moment m[kMost] = {}, v[kMost] = {};
  HWY_ALIGN typename G::Element g[kMost] = {};
  HWY_ALIGN Low low[kMost] = {};
  HWY_ALIGN int16_t remainder[kMost] = {};
  copy(m, a.exp_avg + whole, rest);
  copy(v, a.exp_avg_sq + whole, rest);
  copy(g, a.gradient + whole, rest);
  if constexpr (kSplit) {
    copy(low, a.low + whole, rest);
    copy(remainder, a.remainder + whole, rest);
  } else {
    copy(p, a.parameter + whole, rest);
  }
  update<kStored, G, L, M>({p, m, v, g, low, remainder}, lanes, c);
  copy(a.exp_avg + whole, m, rest);
  copy(a.exp_avg_sq + whole, v, rest);
  if constexpr (kSplit) {
    copy(a.remainder + whole, remainder, rest);
  } else {
    copy(a.parameter + whole, p, rest);
  }
  if (a.low != nullptr) copy(a.low + whole, low, rest);
}

template <typename G, typename M>
void adamw_low(const AdamWArrays& a, int64_t count, Type low, const AdamWConstants& c) {
  switch (low) {
    case Type::kBFloat16:
      return a.remainder != nullptr ? adamw_typed<true, G, BFloat16, M>(a, count, c)
                                    : adamw_typed<false, G, BFloat16, M>(a, count, c);
    case Type::kHalf:
      return adamw_typed<false, G, Half, M>(a, count, c);
    case Type::kFloat:
      return adamw_typed<false, G, Float, M>(a, count, c);
    case Type::kNone:
      return adamw_typed<false, G, None, M>(a, count, c);
  }
}

template <typename M>
void adamw_gradient(const AdamWArrays& a, int64_t count, const AdamWTypes& types,
                    const AdamWConstants& c) {
  switch (types.gradient) {
    case Type::kBFloat16:
      return adamw_low<BFloat16, M>(a, count, types.low_precision, c);
    case Type::kHalf:
      return adamw_low<Half, M>(a, count, types.low_precision, c);
    default:
      return adamw_low<Float, M>(a, count, types.low_precision, c);
  }
}

void adamw_target(const AdamWArrays& a, int64_t count, const AdamWTypes& types,
                  const AdamWConstants& c) {
  return types.moments == Type::kBFloat16 ? adamw_gradient<BFloat16>(a, count, types, c)
                                          : adamw_gradient<Float>(a, count, types, c);
}

// Sixteen partial sums for any vector length.
template <typename T>
double square_sum_typed(const void* data, int64_t count) {
  constexpr int64_t kParts = 16;
  const auto* in = static_cast<const typename T::Element*>(data);
  HWY_ALIGN double sums[kParts] = {};
  HWY_ALIGN float values[kParts];
  HWY_ALIGN typename T::Element rest[kParts] = {};
  for (int64_t i = 0; i < count; i += kParts) {
    const typename T::Element* from = in + i;
    if (count - i < kParts) {
      copy(rest, from, count - i);
      from = rest;
    }
    const auto lanes = static_cast<int64_t>(hn::Lanes(kFloats));
    for (int64_t j = 0; j < kParts; j += lanes) Float::store(T::load(from + j), values + j);
    for (int64_t j = 0; j < kParts; ++j) {
      const double value = values[j];
      sums[j] += value * value;
    }
  }
  double sum = 0;
  for (double part : sums) sum += part;
  return sum;
}

double square_sum_target(const void* data, int64_t count, Type type) {
  switch (type) {
    case Type::kBFloat16:
      return square_sum_typed<BFloat16>(data, count);
    case Type::kHalf:
      return square_sum_typed<Half>(data, count);
    default:
      return square_sum_typed<Float>(data, count);
  }
}

}  // namespace
}  // namespace tessera::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::ops::cpu {

HWY_EXPORT(adamw_target);
HWY_EXPORT(square_sum_target);

void adamw(const AdamWArrays& arrays, int64_t count, const AdamWTypes& types,
           const AdamWConstants& constants) {
  HWY_DYNAMIC_DISPATCH(adamw_target)(arrays, count, types, constants);
}

double square_sum(const void* data, int64_t count, Type type) {
  return HWY_DYNAMIC_DISPATCH(square_sum_target)(data, count, type);
}

}  // namespace tessera::ops::cpu
#endif  // HWY_ONCE
