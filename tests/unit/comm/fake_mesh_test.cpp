// SPDX-License-Identifier: MIT
#include "tessera/comm/fake_mesh.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

namespace tessera {
namespace {

constexpr MeshExtents kMesh{.pipeline = 2, .data = 3, .tensor = 2};

at::Tensor nothing(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return at::empty(shape, at::TensorOptions(dtype).device(at::kMeta));
}

TEST_CASE("a mesh that is not there has the axes of one that is, on every rank") {
  test::run_ranks(12, [](Communicator& world) {
    const auto ledger = std::make_shared<CommunicationLedger>();
    const auto recorded = record_operations(world.split(0, world.rank()), ledger);
    const DeviceMesh real(*recorded, kMesh);
    const FakeMesh fake(kMesh, coordinate_of(world.rank(), kMesh));
    const auto& there = ledger->communicators;
    const auto& not_there = fake.ledger().communicators;
    test::require(there.size() == 5 && not_there.size() == 5, there.size(), not_there.size());
    for (size_t i = 0; i < there.size(); ++i) {
      test::require(there[i].name == not_there[i].name && there[i].ranks == not_there[i].ranks &&
                        there[i].rank == not_there[i].rank,
                    "communicator ", i, " is ", not_there[i].name, " instead of ", there[i].name);
    }
    for (const Axis axis : {Axis::kPipeline, Axis::kData, Axis::kTensor, Axis::kContext}) {
      test::require(real.coordinate(axis) == fake.mesh().coordinate(axis), "coordinate");
      test::require(real.extent(axis) == fake.mesh().extent(axis), "extent");
    }
  });
}

TEST_CASE("a mesh that is not there has the expert axis of one that is") {
  constexpr MeshExtents kExperts{.pipeline = 2, .data = 4, .expert = 2};
  test::run_ranks(8, [&](Communicator& world) {
    const DeviceMesh real(world, kExperts);
    const FakeMesh fake(kExperts, coordinate_of(world.rank(), kExperts));
    const DeviceMesh& other = fake.mesh();
    test::require(real.coordinate(Axis::kExpert) == other.coordinate(Axis::kExpert) &&
                      other.extent(Axis::kExpert) == 2,
                  "axis");
    test::require(other.expert_holders()->size() == 2 &&
                      real.expert_holders()->rank() == other.expert_holders()->rank(),
                  "holders");
  });
}

TEST_CASE("operations of a mesh that is not there return at once and are written down") {
  const FakeMesh fake(kMesh, {.pipeline = 1, .data = 2, .tensor = 0});
  Communicator& data = fake.mesh().axis(Axis::kData);
  CHECK(data.device().is_meta());
  data.all_reduce(nothing({12})).wait();
  data.reduce_scatter(nothing({4}), nothing({12})).wait();
  fake.mesh().axis(Axis::kPipeline).send(nothing({2, 2}, at::kHalf), 0).wait();
  data.barrier();
  const CommunicationLedger& ledger = fake.ledger();
  REQUIRE(ledger.operations.size() == 4);
  CHECK(text_of(ledger.operations[1]) == "reduce_scatter of 4 Float, sum, in start");
  CHECK(text_of(ledger.operations[2]) == "send of 4 Half, to place 0, in start");
  CHECK(ledger.operations[0].bytes_sent == 64);
  CHECK(ledger.operations[2].bytes_sent == 8);
  CHECK(ledger.communicators[ledger.operations[0].communicator].ranks ==
        std::vector<int>{6, 8, 10});
  CHECK(fake.mesh().world().bytes_sent() == 0);
  CHECK(data.bytes_sent() == 64 + 32);
}

TEST_CASE("arguments are checked on a mesh that is not there, and nothing is written down then") {
  const FakeMesh fake(kMesh, {});
  Communicator& data = fake.mesh().axis(Axis::kData);
  CHECK_THROWS_WITH(data.all_reduce(at::ones({3})),
                    test::contains("the tensor lives on cpu, the none communicator on meta"));
  CHECK_THROWS_WITH(data.all_gather(nothing({4}), nothing({3})), test::contains("all_gather"));
  CHECK_THROWS_WITH(data.all_reduce(nothing({2}, at::kBool)), test::contains("dtype Bool"));
  CHECK_THROWS_WITH(data.all_reduce(nothing({2, 3}).t()), test::contains("not contiguous"));
  CHECK_THROWS_WITH(data.broadcast(nothing({2}), 3), test::contains("broadcast"));
  CHECK_THROWS_WITH(data.send(nothing({2}), -1), test::contains("send"));
  CHECK(fake.ledger().operations.empty());
}

TEST_CASE("split() of a mesh that is not there is refused, and says what to call") {
  const FakeMesh fake(kMesh, {});
  CHECK_THROWS_WITH(fake.mesh().world().split(0, 0),
                    "a communicator of a mesh that is not there cannot ask other ranks for their "
                    "colors. Call split_by(), which says what each rank gives");
  for (const MeshCoordinate& at :
       {MeshCoordinate{.pipeline = 2}, MeshCoordinate{.data = -1}, MeshCoordinate{.tensor = 2}}) {
    CHECK_THROWS_WITH(FakeMesh(kMesh, at), test::contains("fake mesh: no rank has the coordinate"));
  }
}

TEST_CASE("a communicator of one's own goes around all ranks of a mesh that is not there") {
  int wrapped = 0;
  const FakeMesh fake(kMesh, {.data = 1}, [&](std::unique_ptr<Communicator> world) {
    ++wrapped;
    CHECK(world->size() == 12);
    return world;
  });
  CHECK(wrapped == 1);
  CHECK(fake.mesh().coordinate(Axis::kData) == 1);
}

}  // namespace
}  // namespace tessera
