#include "tessera/sharding/buffer_slots.h"

#include <ATen/ATen.h>

#include "tests/support/test.hpp"

using namespace tessera;

TEST_CASE("neighbours of equal size never share a slot, exclusive users share with nobody") {
  const BufferSlots slots({100, 8, 8, 8, 8, 8}, {true, false, false, false, true, false}, 2,
                          at::TensorOptions().dtype(at::kFloat));
  CHECK(slots.slot_count() == 4);  // two exclusive ones and two of size 8
  CHECK(slots.slot_of(1) != slots.slot_of(2));
  CHECK(slots.slot_of(1) == slots.slot_of(3));
  CHECK(slots.slot_of(3) != slots.slot_of(5));
  for (size_t other : {0, 1, 2, 3, 5}) CHECK(slots.slot_of(4) != slots.slot_of(other));
  CHECK(slots.bytes() == 4 * (100 + 3 * 8));
  CHECK(slots.buffer(0).numel() == 100);
}
