// SPDX-License-Identifier: MIT
#include "tessera/core/lazy_zero.h"

#include <ATen/ATen.h>

#include <limits>

#include "tests/support/test.hpp"

using namespace tessera;

namespace {

// Uninitialised memory.
at::Tensor leftovers(at::IntArrayRef shape) {
  return at::full(shape, std::numeric_limits<double>::quiet_NaN());
}

bool is_zero(const at::Tensor& x) { return x.eq(0).all().item<bool>(); }
bool is_left(const at::Tensor& x) { return x.isnan().all().item<bool>(); }

}  // namespace

TEST_CASE("blank memory is taken once, and not cleared for it") {
  const at::Tensor flat = leftovers({24}), x = flat.narrow(0, 4, 12);
  declare_lazy_zero({x});
  CHECK(consume_lazy_zero(x.view({3, 4}).t()));  // any shape and stride
  CHECK_FALSE(consume_lazy_zero(x));
  clear_lazy_zero({x});
  CHECK(is_left(flat));
}

TEST_CASE("blank memory side by side is taken together, and what is no whole is cleared") {
  const at::Tensor flat = leftovers({24});
  const at::Tensor a = flat.narrow(0, 0, 8), b = flat.narrow(0, 8, 8), c = flat.narrow(0, 16, 8);
  declare_lazy_zero({c, a, b});
  CHECK(consume_lazy_zero(flat.narrow(0, 0, 16)));
  CHECK_FALSE(consume_lazy_zero(flat.narrow(0, 8, 16)));  // half of it is no longer blank
  CHECK(is_zero(c));
  CHECK(is_left(flat.narrow(0, 0, 16)));
  for (const auto& part : {flat.narrow(0, 3, 2), flat.narrow(0, 0, 9), flat.slice(0, 0, 8, 2)}) {
    flat.fill_(1);
    declare_lazy_zero({a});
    CHECK_FALSE(consume_lazy_zero(part));
    CHECK(is_zero(a));
    CHECK(flat.narrow(0, 8, 16).eq(1).all().item<bool>());
  }
}

TEST_CASE("blank memory is settled, cleared or forgotten") {
  const at::Tensor a = leftovers({8}), b = leftovers({8}), c = leftovers({8});
  declare_lazy_zero({a, b, c});
  materialize_lazy_zero(a.narrow(0, 2, 2));
  CHECK(is_zero(a));
  clear_lazy_zero({b});
  CHECK(is_zero(b));
  discard_lazy_zero({c});
  CHECK_FALSE(consume_lazy_zero(c));
  CHECK(is_left(c));
  a.fill_(1);
  materialize_lazy_zero(a);
  clear_lazy_zero({a, b, c});
  CHECK(a.eq(1).all().item<bool>());
}

TEST_CASE("what is declared blank anew counts as it is declared last") {
  const at::Tensor flat = leftovers({16});
  declare_lazy_zero({flat.narrow(0, 0, 8), flat.narrow(0, 8, 8)});
  declare_lazy_zero({flat.narrow(0, 4, 8)});
  CHECK(consume_lazy_zero(flat.narrow(0, 4, 8)));
  CHECK_FALSE(consume_lazy_zero(flat));
  CHECK(is_left(flat));
}

TEST_CASE("nothing has no blank memory") {
  const at::Tensor none = at::empty({0}), planned = at::empty({8}, at::kMeta);
  declare_lazy_zero({none, planned});
  CHECK_FALSE(consume_lazy_zero(none));
  CHECK_FALSE(consume_lazy_zero(planned));
}
