// SPDX-License-Identifier: MIT
#pragma once
// From a run-time element type to a template argument.
#include <utility>

#include "lib/ops/cuda/launch.h"
#include "lib/ops/cuda/vector.cuh"

namespace tessera::ops::cuda {

template <typename T>
struct Tag {
  using type = T;
};

template <typename Function>
void with_16_bit_type(Type type, Function&& function) {
  if (type == Type::kHalf) {
    function(Tag<Half>{});
  } else {
    function(Tag<Bfloat16>{});
  }
}

template <typename Function>
void with_type(Type type, Function&& function) {
  if (type == Type::kFloat) {
    function(Tag<float>{});
  } else {
    with_16_bit_type(type, std::forward<Function>(function));
  }
}

}  // namespace tessera::ops::cuda
