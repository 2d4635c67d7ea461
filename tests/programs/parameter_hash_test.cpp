// SPDX-License-Identifier: MIT
#include "lib/run/parameter_hash.h"

#include <ATen/ATen.h>

#include "tests/support/test.hpp"

using namespace tessera;
using programs::ParameterHash;

namespace {

std::string hash_of(std::initializer_list<at::Tensor> values) {
  ParameterHash hash;
  for (const at::Tensor& value : values) hash.update(value);
  return hash.hex();
}

std::string of_bytes(const at::Tensor& fp32) {
  return xxh3_128(fp32.const_data_ptr(), fp32.nbytes()).hex();
}

}  // namespace

TEST_CASE("a hash of parameters is that of their fp32 bytes, one after the other") {
  const at::Tensor first = at::randn({3, 5}), second = at::randn({7});
  CHECK(hash_of({first, second}) == of_bytes(at::cat({first.flatten(), second})));
  CHECK(hash_of({first.t()}) == of_bytes(first.t().contiguous()));
  CHECK(hash_of({first, at::empty({0, 4})}) == of_bytes(first));
  CHECK(hash_of({first.requires_grad_(true)}) == of_bytes(first));
  CHECK(hash_of({second, first}) != hash_of({first, second}));
}

TEST_CASE("a hash of narrow parameters is that of their fp32 values, in pieces of any number") {
  const at::Tensor narrow = at::randn({5, 4'000'037}).to(at::kBFloat16);  // three pieces
  CHECK(hash_of({narrow}) == of_bytes(narrow.to(at::kFloat)));
}
