// SPDX-License-Identifier: MIT
#include "tessera/comm/device_mesh.h"

#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

namespace tessera {
namespace {

using test::require;

TEST_CASE("the tensor axis is innermost and every axis reduces over its own ranks") {
  REQUIRE_NOTHROW(test::run_ranks(8, [](Communicator& world) {
    DeviceMesh mesh(world, {.pipeline = 2, .data = 2, .tensor = 2});
    const int r = world.rank();
    require(mesh.coordinate(Axis::kTensor) == r % 2, "tensor coordinate of rank ", r);
    require(mesh.coordinate(Axis::kData) == r / 2 % 2, "data coordinate of rank ", r);
    require(mesh.coordinate(Axis::kPipeline) == r / 4, "pipeline coordinate of rank ", r);
    const int stride[] = {4, 2, 1};
    for (const Axis axis : {Axis::kPipeline, Axis::kData, Axis::kTensor}) {
      require(mesh.extent(axis) == 2, "extent");
      at::Tensor sum = at::full({1}, r, at::kLong);
      mesh.axis(axis).all_reduce(sum).wait();
      const int peer = r ^ stride[static_cast<int>(axis)];
      require(sum.item<int64_t>() == r + peer, "axis ", static_cast<int>(axis), " of rank ", r,
              " sums to ", sum.item<int64_t>());
    }
  }));
}

TEST_CASE("extents that do not multiply to the world size are refused with all of them") {
  auto world = make_local_world(4);
  REQUIRE_THROWS_WITH(DeviceMesh(*world[0], {.pipeline = 1, .data = 3, .tensor = 2}),
                      test::contains("pipeline 1 x data 3 x tensor 2") && test::contains("is 4"));
}

TEST_CASE("one rank has a mesh of size-1 communicators") {
  test::run_ranks(1, [](Communicator& world) {
    DeviceMesh mesh(world, {});
    at::Tensor x = at::ones({3});
    mesh.axis(Axis::kData).all_reduce(x).wait();
    test::require_bit_equal(x, at::ones({3}), "sum over one rank");
  });
}

}  // namespace
}  // namespace tessera
