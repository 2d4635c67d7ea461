// SPDX-License-Identifier: MIT
#include "lib/comm/reduce_kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "tessera/core/error.h"

namespace tessera {
namespace {

template <typename T>
constexpr bool kIsHalfPrecision = std::is_same_v<T, c10::Half> || std::is_same_v<T, c10::BFloat16>;

// Unsigned arithmetic wraps; signed overflow would be undefined.
template <typename T, ReduceOp op>
T combine(T a, T b) {
  if constexpr (op == ReduceOp::kSum) {
    if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    } else {
      return a + b;
    }
  } else {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(a) || std::isnan(b)) return a + b;
    }
    return op == ReduceOp::kMax ? std::max(a, b) : std::min(a, b);
  }
}

template <typename T, ReduceOp op>
void reduce_typed(std::span<const ReduceInput> inputs, std::span<const ReduceOutput> outputs,
                  int64_t count) {
  using Sum = std::conditional_t<kIsHalfPrecision<T>, float, T>;
  constexpr int64_t kTile = 2048;  // elements; the running sums fit the L1 cache
  std::array<Sum, kTile> sums;
  for (int64_t start = 0; start < count; start += kTile) {
    const int64_t length = std::min(kTile, count - start);
    const auto at = [&](const ReduceInput& input) {
      return static_cast<const T*>(input.data) + input.begin + start;
    };
    const T* first = at(inputs.front());
    for (int64_t i = 0; i < length; ++i) sums[i] = static_cast<Sum>(first[i]);
    for (const ReduceInput& input : inputs.subspan(1)) {
      const T* values = at(input);
      for (int64_t i = 0; i < length; ++i) {
        sums[i] = combine<Sum, op>(sums[i], static_cast<Sum>(values[i]));
      }
    }
    for (const ReduceOutput& output : outputs) {
      T* values = static_cast<T*>(output.data) + output.begin + start;
      for (int64_t i = 0; i < length; ++i) values[i] = static_cast<T>(sums[i]);
    }
  }
}

template <typename T>
void reduce_with(ReduceOp op, std::span<const ReduceInput> inputs,
                 std::span<const ReduceOutput> outputs, int64_t count) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce_typed<T, ReduceOp::kSum>(inputs, outputs, count);
    case ReduceOp::kMax:
      return reduce_typed<T, ReduceOp::kMax>(inputs, outputs, count);
    case ReduceOp::kMin:
      return reduce_typed<T, ReduceOp::kMin>(inputs, outputs, count);
  }
}

}  // namespace

void reduce_elements(at::ScalarType dtype, ReduceOp op, std::span<const ReduceInput> inputs,
                     std::span<const ReduceOutput> outputs, int64_t count) {
  switch (dtype) {
    case at::kFloat:
      return reduce_with<float>(op, inputs, outputs, count);
    case at::kDouble:
      return reduce_with<double>(op, inputs, outputs, count);
    case at::kHalf:
      return reduce_with<c10::Half>(op, inputs, outputs, count);
    case at::kBFloat16:
      return reduce_with<c10::BFloat16>(op, inputs, outputs, count);
    case at::kLong:
      return reduce_with<int64_t>(op, inputs, outputs, count);
    case at::kInt:
      return reduce_with<int32_t>(op, inputs, outputs, count);
    case at::kChar:
      return reduce_with<int8_t>(op, inputs, outputs, count);
    case at::kByte:
      return reduce_with<uint8_t>(op, inputs, outputs, count);
    default:
      fail(ErrorCode::kInternal, "reduce_elements: dtype ", dtype, " has no reduction");
  }
}

}  // namespace tessera
