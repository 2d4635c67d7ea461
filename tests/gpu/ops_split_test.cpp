// SPDX-License-Identifier: MIT
// AdamW on split masters on the GPU.
#include "lib/ops/reference.h"
#include "tests/gpu/gpu.h"
#include "tests/unit/ops/split_masters.h"

using namespace tessera;

TEST_CASE("AdamW on the GPU has the same bits on split masters and on whole ones") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(71);
  test::check_split_masters(at::kCUDA, ops::adamw_update);
  test::check_split_masters(at::kCUDA, ops::reference::adamw_update);
}

TEST_CASE("split masters on the GPU have the same bits in every range") {
  TESSERA_NEEDS_GPUS(1);
  at::manual_seed(72);
  constexpr int64_t kCount = 100'003;
  const auto here = at::TensorOptions(at::kCUDA);
  const test::AdamWState whole =
      test::settled_state(at::randn({kCount}, here), at::kBFloat16, at::kFloat).split();
  const test::AdamWState cut = whole.copy();
  const auto scalar = [&](double value) { return at::full({}, value, here.dtype(at::kFloat)); };
  const ops::AdamWScalars scalars{scalar(0.01), scalar(1), {}, {}};
  ops::adamw_update(std::vector{whole.range(0, kCount)}, {}, scalars);
  ops::adamw_update(
      std::vector{cut.range(0, 1), cut.range(1, 50'000), cut.range(50'001, kCount - 50'001)}, {},
      scalars);
  test::check_same_bits(cut.masters(), whole.masters());
  test::check_same_bits(cut.low, whole.low);
}

TEST_CASE("splitting and joining on the GPU is what it is on the host") {
  TESSERA_NEEDS_GPUS(1);
  const at::Tensor values = test::every_upper_half();
  const at::Tensor here = values.to(at::kCUDA);
  const SplitMaster split{at::empty_like(here, at::kBFloat16), at::empty_like(here, at::kShort)};
  split.set(here);
  settle(values);
  test::check_same_bits(split.join(), values);
  test::check_same_bits(split.rounded, values.to(at::kBFloat16));
}
