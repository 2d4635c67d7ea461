// SPDX-License-Identifier: MIT
#include "tessera/sharding/buffer_slots.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <random>

#include "tests/support/test.hpp"

using namespace tessera;

TEST_CASE(
    "gather_groups take the slots round and round, each slot as large as its largest "
    "gather_group") {
  const SlotAssignment slots = assign_slots({{.numel = 100, .gather_group = 0, .exclusive = true},
                                             {.numel = 8, .gather_group = 0},
                                             {.numel = 30, .gather_group = 1},
                                             {.numel = 5, .gather_group = 1},
                                             {.numel = 0, .gather_group = 2},
                                             {.numel = 9, .gather_group = 3},
                                             {.numel = 7, .gather_group = 4}},
                                            2);
  CHECK(slots.slot[1] == slots.slot[5]);  // gather_groups 0 and 3: gather_group 2 needs no buffer
  CHECK(slots.slot[2] == slots.slot[3]);  // the same gather_group, side by side
  CHECK(slots.offset[3] == 30);
  CHECK(slots.slot[2] == slots.slot[6]);
  CHECK(slots.slot[1] != slots.slot[2]);
  CHECK(slots.slot_numel[slots.slot[1]] == 9);
  CHECK(slots.slot_numel[slots.slot[2]] == 35);
  for (size_t other : {1, 2, 3, 5, 6}) CHECK(slots.slot[0] != slots.slot[other]);
}

TEST_CASE("neighbours never meet, and no more memory is used than the largest gather_groups need") {
  std::mt19937 random(5);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<SlotUser> users;
    std::vector<int64_t> sizes;
    for (size_t gather_group = 0; gather_group < 1 + random() % 12; ++gather_group) {
      sizes.push_back(1 + static_cast<int64_t>(random() % 50));
      users.push_back({.numel = sizes.back(), .gather_group = gather_group});
    }
    const int depth = 1 + static_cast<int>(random() % 4);
    const SlotAssignment slots = assign_slots(users, depth);
    for (size_t a = 0; a < users.size(); ++a) {
      for (size_t b = a + 1; b < users.size() && b < a + static_cast<size_t>(depth); ++b) {
        CHECK(slots.slot[a] != slots.slot[b]);
      }
    }
    std::sort(sizes.begin(), sizes.end(), std::greater<>());
    int64_t most = 0, sum = 0;
    for (size_t i = 0; i < sizes.size() && i < static_cast<size_t>(depth); ++i) most += sizes[i];
    for (int64_t numel : slots.slot_numel) sum += numel;
    CHECK(sum <= most);
  }
}

TEST_CASE("buffers are views of their slots") {
  const BufferSlots slots({{.numel = 8, .gather_group = 0},
                           {.numel = 3, .gather_group = 0},
                           {.numel = 4, .gather_group = 1}},
                          1, at::TensorOptions().dtype(at::kFloat));
  CHECK(slots.bytes() == 4 * 11);
  CHECK(slots.buffer(1).numel() == 3);
  CHECK(slots.buffer(0).data_ptr() == slots.buffer(2).data_ptr());
  CHECK(slots.buffer(1).data_ptr<float>() == slots.buffer(0).data_ptr<float>() + 8);
}
