// SPDX-License-Identifier: MIT
#include "lib/core/vector_math.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <atomic>
#include <mutex>

namespace tessera {
namespace {

std::atomic<bool> resolved = false;

// The functions of ATen/cpu/vml.h that MKL computes.
void call_each(at::ScalarType type) {
  const at::Tensor x = at::full({1}, 0.5, type);
  for (const auto function :
       {&at::acos, &at::asin, &at::atan, &at::cos, &at::erf, &at::erfc, &at::erfinv, &at::exp,
        &at::log, &at::log10, &at::log2, &at::sin, &at::sqrt, &at::tan, &at::tanh, &at::trunc}) {
    function(x);
  }
}

}  // namespace

void resolve_vector_math() {
  static std::once_flag once;
  std::call_once(once, [] {
    const at::NoGradGuard no_grad;
    call_each(at::kFloat);
    call_each(at::kDouble);
    resolved = true;
  });
}

bool is_vector_math_resolved() { return resolved; }

}  // namespace tessera
