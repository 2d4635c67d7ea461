// SPDX-License-Identifier: MIT
#include "tessera/sharding/gradient_buffer.h"

#include <ATen/ATen.h>

#include <limits>

#include "tessera/core/lazy_zero.h"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

at::Tensor leaf(at::IntArrayRef shape) { return at::ones(shape).set_requires_grad(true); }

// Two weights with lazily zeroed gradients, one of odd size, and one without.
struct Case {
  at::Tensor a = leaf({8, 8}), odd = leaf({3, 5}), plain = leaf({7});
  ParameterUnit unit;
  at::Tensor flat;

  Case() {
    std::vector<Parameter> parameters;
    for (const at::Tensor& x : {a, odd, plain}) {
      parameters.push_back({"p", x});
      unit.handles.push_back({x});
      unit.blank.push_back(x.dim() > 1);
    }
    unit.layout = FlatLayout(parameters, 1, ShardGranularity::kFlat);
    flat = at::full({unit.layout.numel()}, std::numeric_limits<double>::quiet_NaN());
  }
};

}  // namespace

TEST_CASE("a gradient starts blank where that is allowed, and as zeros elsewhere") {
  Case c;
  GradientBuffer buffer(c.unit, c.flat);
  buffer.begin();
  CHECK(c.plain.grad().eq(0).all().item<bool>());
  CHECK(c.flat.isnan().sum().item<int64_t>() == 8 * 8 + 3 * 5);  // padding is zero
  CHECK(consume_lazy_zero(c.a.grad()));
  c.a.grad().fill_(2);
  buffer.complete();
  CHECK(c.a.grad().eq(2).all().item<bool>());
  CHECK(c.odd.grad().eq(0).all().item<bool>());  // never written
  CHECK(c.flat.sum().item<double>() == 2 * 64);
}

TEST_CASE("what a gradient has to clear can be cleared by its owner") {
  Case c;
  GradientBuffer buffer(c.unit, c.flat);
  REQUIRE_FALSE(buffer.to_clear().empty());
  for (at::Tensor range : buffer.to_clear()) range.zero_();
  buffer.begin_cleared();
  CHECK(c.plain.grad().eq(0).all().item<bool>());
  CHECK(c.flat.isnan().sum().item<int64_t>() == 8 * 8 + 3 * 5);
  CHECK(consume_lazy_zero(c.a.grad()));
}

TEST_CASE("autograd adds to a blank gradient as to zeros") {
  Case c;
  GradientBuffer buffer(c.unit, c.flat);
  for (int step = 0; step < 2; ++step) {
    buffer.begin();
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      (c.a.sum() * 3 + c.odd.sum() + c.plain.sum()).backward();
    }
    buffer.complete();
    CHECK(c.a.grad().eq(6).all().item<bool>());
    CHECK(c.odd.grad().eq(2).all().item<bool>());
    CHECK(c.plain.grad().eq(2).all().item<bool>());
  }
}

TEST_CASE("a gradient that is gone leaves nothing blank") {
  Case c;
  {
    GradientBuffer buffer(c.unit, c.flat);
    buffer.begin();
  }
  CHECK_FALSE(consume_lazy_zero(c.flat));
  CHECK(c.a.grad().isnan().all().item<bool>());
  c.a.sum().backward();  // the leaf is no longer watched
  CHECK(c.a.grad().isnan().all().item<bool>());
}
