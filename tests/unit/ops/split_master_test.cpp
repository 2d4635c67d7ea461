// SPDX-License-Identifier: MIT
// Split masters: the rounding rule that makes them exact, and the host's AdamW on them.
#include "tessera/core/split_master.h"

#include <ATen/Parallel.h>

#include "lib/ops/reference.h"
#include "tests/unit/ops/split_masters.h"
#include "tests/unit/ops/targets.h"

using namespace tessera;

TEST_CASE("a split master gives every settled value back, and its bf16 half is the value rounded") {
  const at::Tensor values = test::every_upper_half();
  const at::Tensor settled = values.clone();
  settle(settled);
  const at::Tensor bits = values.view(at::kInt), after = settled.view(at::kInt);
  // One unit of the last place towards zero, only midway above even neighbours.
  CHECK(after.eq(bits - bits.bitwise_and(0x1FFFF).eq(0x8000).to(at::kInt)).all().item<bool>());
  CHECK(after.ne(bits).sum().item<int64_t>() == 32768);
  CHECK(settled.isnan().equal(values.isnan()));
  test::check_same_bits(settled.to(at::kBFloat16), values.to(at::kBFloat16));
  const at::Tensor again = settled.clone();
  settle(again);
  test::check_same_bits(again, settled);

  const SplitMaster split{at::empty_like(values, at::kBFloat16),
                          at::empty_like(values, at::kShort)};
  split.set(values);
  test::check_same_bits(split.rounded, values.to(at::kBFloat16));
  test::check_same_bits(split.join(), settled);
  test::check_same_bits(split.narrow(100, 1000).join(), settled.narrow(0, 100, 1000));
  split.set(values.to(at::kDouble));  // from another dtype
  test::check_same_bits(split.join(), settled);
}

TEST_CASE("host AdamW has the same bits on split masters and on whole ones") {
  at::manual_seed(25);
  const int targets =
      test::with_every_target([&] { test::check_split_masters(at::kCPU, ops::adamw_update); });
  CHECK(targets >= 2);
}

TEST_CASE("the reference of AdamW has the same bits on split masters and on whole ones") {
  at::manual_seed(26);
  test::check_split_masters(at::kCPU, ops::reference::adamw_update);
}

TEST_CASE("bits of split masters depend neither on threads nor on pieces") {
  at::manual_seed(27);
  const test::AdamWState before =
      test::settled_state(at::randn({100'003}), at::kBFloat16, at::kFloat).split();
  const auto stepped = [&](int64_t blocks) {
    const test::AdamWState run = before.copy();
    const auto scalar = [](double value) { return at::full({}, value, at::kFloat); };
    ops::adamw_update(run.ranges(blocks), {}, {scalar(0.01), scalar(1), {}, {}});
    return run;
  };
  const at::Tensor whole = stepped(1000).masters();
  CHECK_FALSE(whole.equal(before.masters()));
  const int threads = at::get_num_threads();
  for (const int count : {1, 3}) {
    at::set_num_threads(count);
    test::check_same_bits(stepped(1000).masters(), whole);
  }
  at::set_num_threads(threads);
  test::check_same_bits(stepped(3).masters(), whole);
}
