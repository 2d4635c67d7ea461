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

TEST_CASE("the context axis lies between data and tensor, and state is shared by data x context") {
  REQUIRE_NOTHROW(test::run_ranks(8, [](Communicator& world) {
    DeviceMesh mesh(world, {.data = 2, .tensor = 2, .context = 2});
    const int r = world.rank();
    require(mesh.coordinate(Axis::kTensor) == r % 2, "tensor coordinate of rank ", r);
    require(mesh.coordinate(Axis::kContext) == r / 2 % 2, "context coordinate of rank ", r);
    require(mesh.coordinate(Axis::kData) == r / 4, "data coordinate of rank ", r);
    require(mesh.sharding().size() == 4 && mesh.sharding().rank() == r / 2, "place ",
            mesh.sharding().rank(), " of rank ", r, " among those that share state");
    at::Tensor sum = at::full({1}, r, at::kLong);
    mesh.sharding().all_reduce(sum).wait();
    require(sum.item<int64_t>() == 12 + 4 * (r % 2), "sum ", sum.item<int64_t>());
  }));
}

TEST_CASE("the expert axis has neighbouring data ranks, and holders of the same experts one each") {
  REQUIRE_NOTHROW(test::run_ranks(8, [](Communicator& world) {
    DeviceMesh mesh(world, {.pipeline = 2, .data = 4, .expert = 2});
    const int r = world.rank(), data = r % 4;
    require(mesh.extent(Axis::kExpert) == 2 && mesh.extent(Axis::kData) == 4, "extents");
    require(mesh.coordinate(Axis::kExpert) == data % 2, "expert coordinate of rank ", r);
    at::Tensor sum = at::full({1}, r, at::kLong);
    mesh.axis(Axis::kExpert).all_reduce(sum).wait();
    require(sum.item<int64_t>() == r + (r ^ 1), "neighbours of rank ", r);
    sum.fill_(r);
    mesh.expert_holders()->all_reduce(sum).wait();
    require(sum.item<int64_t>() == r + (r ^ 2), "holders of the experts of rank ", r);
  }));
  test::run_ranks(2, [](Communicator& world) {
    const DeviceMesh mesh(world, {.data = 2});
    require(mesh.extent(Axis::kExpert) == 1 && mesh.coordinate(Axis::kExpert) == 0, "no axis");
    require(mesh.expert_holders() == nullptr, "no holders");
  });
  auto world = make_local_world(3);
  REQUIRE_THROWS_WITH(DeviceMesh(*world[0], {.data = 3, .expert = 2}),
                      test::contains("experts on 2 ranks: that must divide the data axis of 3"));
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
