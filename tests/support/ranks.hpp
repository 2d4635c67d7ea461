// SPDX-License-Identifier: MIT
#pragma once
// Tests on in-process ranks. Catch2's assertions are not thread-safe, so ranks use require(), which
// throws.
#include <ATen/ATen.h>

#include <functional>
#include <string>

#include "tessera/comm/local.h"
#include "tessera/core/error.h"

namespace tessera::test {

// Fails the test from any thread: the exception ends all ranks, and run_ranks rethrows it.
template <typename... Parts>
void require(bool condition, const Parts&... parts) {
  check(condition, ErrorCode::kInternal, "expectation failed: ", parts...);
}

inline void run_ranks(int size, const std::function<void(Communicator&)>& fn) {
  run_local_ranks(size, fn);
}

// Requires equal shape, dtype and bits; reports the first differing element with both values.
inline void require_bit_equal(const at::Tensor& actual, const at::Tensor& expected,
                              const std::string& what) {
  require(actual.scalar_type() == expected.scalar_type() && actual.sizes() == expected.sizes(),
          what, ": ", actual.scalar_type(), actual.sizes(), " instead of ", expected.scalar_type(),
          expected.sizes());
  const at::Tensor a = actual.to(at::kCPU).contiguous().view(-1);
  const at::Tensor b = expected.to(at::kCPU).contiguous().view(-1);
  if (a.equal(b)) return;
  const at::Tensor differs = at::logical_and(
      a.ne(b), at::logical_and(a.eq(a), b.eq(b)).logical_or(a.isnan().ne(b.isnan())));
  if (!differs.any().item<bool>()) return;  // NaN in the same places
  const int64_t index = differs.nonzero()[0].item<int64_t>();
  require(false, what, ": element ", index, " of ", a.numel(), " is ", a[index].item<double>(),
          ", expected ", b[index].item<double>());
}

// Requires that fn throws an Error with this code; returns its message.
inline std::string require_error(ErrorCode code, const std::function<void()>& fn,
                                 const std::string& what) {
  try {
    fn();
  } catch (const Error& error) {
    require(error.code() == code, what, ": code ", error_code_name(error.code()), ": ",
            error.what());
    return error.what();
  }
  fail(ErrorCode::kInternal, "expectation failed: ", what, " threw nothing");
}

}  // namespace tessera::test
