// SPDX-License-Identifier: MIT
#include "tessera/checkpoint/checkpoint.h"

#include <algorithm>

#include "tessera/core/json.h"
#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/checkpoint/states.h"

using namespace tessera;
using namespace tessera::test;
using tessera::test::contains;

TEST_CASE("a state saved by ranks under random layouts loads on other ranks under others") {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const TempDir folder;
    const int saving = 1 + static_cast<int>(seed % 4), loading = 1 + static_cast<int>(seed / 4 % 4);
    INFO("seed " << seed);
    run_ranks(saving, [&](Communicator& world) {
      const auto state = state_of(small_model(), world.rank(), saving, 3, seed);
      const auto saved = save_checkpoint(world, folder.path("run"), 3, state, R"({"seed":7})");
      require(saved.path == folder.path("run/checkpoint-3"), saved.path);
      require(saved.bytes > 0, "bytes");
    });
    run_ranks(loading, [&](Communicator& world) {
      const FoundCheckpoint found = find_checkpoint(world, folder.path("run"));
      const Checkpoint checkpoint = open_checkpoint(world, found.path);
      require(checkpoint.run() == R"({"seed":7})", checkpoint.run());
      const auto expected = state_of(small_model(), world.rank(), loading, 3, seed + 1000);
      const auto loaded = filled(expected, -1);
      const LoadReport report = load_checkpoint(world, checkpoint, loaded);
      require_equal(loaded, expected);
      require(report.unused.empty() && report.converted.empty(), "everything as it was");
    });
    const Checkpoint checkpoint(folder.path("run/checkpoint-3"));
    CHECK(checkpoint.verify() == std::vector<std::string>{});
    CHECK(at::equal(checkpoint.read({"wte.weight", "exp_avg"}).view(-1), at::arange(240.) + 3500));
  }
}

TEST_CASE("what several ranks hold is written once, by all of them in equal parts") {
  const TempDir folder;
  run_ranks(4, [&](Communicator& world) {
    // Two independent axes of two: ranks {0, 1} and {2, 3}, ranks {0, 2} and {1, 3}.
    const auto row = world.split(world.rank() / 2, world.rank());
    const auto column = world.split(world.rank() % 2, world.rank());
    std::vector<StateTensor> state;
    const TensorSlice large{.shape = {256, 1024}, .end = 256 * 1024};
    state.push_back({"large",
                     "parameter",
                     large,
                     at::arange(256. * 1024, at::kFloat),
                     {row.get(), column.get()}});
    for (int i = 0; i < 200; ++i) {
      const TensorSlice small{.shape = {64}, .end = 64};
      state.push_back({"small." + std::to_string(i),
                       "parameter",
                       small,
                       at::full({64}, i * 1.0),
                       {row.get(), column.get()}});
    }
    save_checkpoint(world, folder.path("run"), 1, state, "{}");
  });
  const Checkpoint checkpoint(folder.path("run/checkpoint-1"));
  CHECK(checkpoint.manifest().tensors.at({"large", "parameter"}).pieces.size() == 4);
  CHECK(checkpoint.manifest().tensors.at({"small.3", "parameter"}).pieces.size() == 1);
  const int64_t state_bytes = (256 * 1024 + 200 * 64) * 4;
  int64_t data = 0;
  for (const SavedFile& file : checkpoint.manifest().files) {
    const int64_t here = file.bytes - file.header_bytes;
    CHECK(here == Approx(state_bytes / 4).epsilon(0.05));
    data += here;
  }
  CHECK(data == state_bytes);
  CHECK(at::equal(checkpoint.read({"large", "parameter"}).view(-1), at::arange(256. * 1024)));
  CHECK(at::equal(checkpoint.read({"small.7", "parameter"}), at::full({64}, 7.0)));
}

TEST_CASE("split masters are saved in fp32, and loaded into either form") {
  const TempDir folder;
  constexpr int64_t kRows = 3000, kNumel = kRows * 1000;
  const at::Tensor values = at::randn({kNumel});
  values.view(at::kInt).slice(0, 0, 1000).bitwise_and_(0x7FFF0000).bitwise_or_(0x8000);
  const TensorSlice whole{.shape = {kRows, 1000}, .end = kNumel};
  const auto split = [](int64_t numel) {
    return SplitMaster{at::zeros({numel}, at::kBFloat16), at::zeros({numel}, at::kShort)};
  };
  const auto piece = [](const TensorSlice& slice, const SplitMaster& master) {
    return StateTensor{.name = "w",
                       .kind = "parameter",
                       .slice = slice,
                       .value = {},
                       .replicas = {},
                       .split = master};
  };
  const SplitMaster kept = split(kNumel);
  kept.set(values);
  settle(values);
  for (const bool asynchronous : {false, true}) {
    const std::string path = folder.path(asynchronous ? "beside" : "run");
    run_ranks(1, [&](Communicator& world) {
      CheckpointWriter writer(world, path, {.asynchronous = asynchronous});
      writer.save(1, {piece(whole, kept)}, "{}");
      writer.wait();
    });
    const Checkpoint checkpoint(path + "/checkpoint-1");
    CHECK(checkpoint.manifest().tensors.at({"w", "parameter"}).dtype == at::kFloat);
    CHECK(at::equal(checkpoint.read({"w", "parameter"}).view(-1), values));
    const SplitMaster again = split(kNumel);
    const LoadReport report = checkpoint.load({piece(whole, again)});
    CHECK(report.converted.empty());
    CHECK(at::equal(again.join(), values));
    CHECK(at::equal(again.rounded, values.to(at::kBFloat16)));
    const TensorSlice columns{.shape = {kRows, 1000},
                              .dim = 1,
                              .local_size = 6,
                              .intervals = {{1, 500, 4}},
                              .end = kRows * 6};
    const SplitMaster padded = split(kRows * 6);
    checkpoint.load({piece(columns, padded)});
    const at::Tensor expected = at::zeros({kRows, 6});
    expected.slice(1, 1, 5).copy_(values.view({kRows, 1000}).slice(1, 500, 504));
    CHECK(at::equal(padded.join(), expected.view(-1)));
  }
}

TEST_CASE("tensors of several blocks are read in part, and only what is needed") {
  const TempDir folder;
  const TensorSlice whole{.shape = {2048, 1024}, .end = 2048 * 1024};
  const at::Tensor value = at::arange(2048. * 1024, at::kFloat);
  const TensorSlice part{.shape = {2048, 1024}, .begin = 1'000'000, .end = 1'000'003};
  const TensorSlice columns{.shape = {2048, 1024},
                            .dim = 1,
                            .local_size = 200,
                            .intervals = {{0, 100, 100}, {100, 900, 100}},
                            .end = 2048 * 200};
  run_ranks(1, [&](Communicator& world) {
    save_checkpoint(world, folder.path("run"), 1, {{"w", "parameter", whole, value, {}}}, "{}");
  });
  const Checkpoint checkpoint(folder.path("run/checkpoint-1"));
  const at::Tensor few = at::empty({3}), half = at::empty({3}, at::kBFloat16);
  const LoadReport report = checkpoint.load({{"w", "parameter", part, few, {}}});
  CHECK(at::equal(few, value.slice(0, 1'000'000, 1'000'003)));
  CHECK(report.bytes_read == Manifest::kBlockBytes);
  const LoadReport converted = checkpoint.load({{"w", "parameter", part, half, {}}});
  CHECK(at::equal(half, few.to(at::kBFloat16)));
  CHECK(converted.converted == std::vector<std::string>{"w (parameter): Float to BFloat16"});
  const at::Tensor cut = at::empty({2048 * 200}), cut_double = at::empty({2048 * 200}, at::kDouble);
  checkpoint.load({{"w", "parameter", columns, cut, {}}});
  checkpoint.load({{"w", "parameter", columns, cut_double, {}}});
  const at::Tensor table = value.view({2048, 1024});
  const at::Tensor expected =
      at::cat({table.slice(1, 100, 200), table.slice(1, 900, 1000)}, 1).reshape(-1);
  CHECK(at::equal(cut, expected));
  CHECK(at::equal(cut_double, expected.to(at::kDouble)));
}

TEST_CASE("padding keeps its value, also where the dtype is converted") {
  const TempDir folder;
  const TensorSlice whole{.shape = {5}, .end = 5};
  const TensorSlice padded{
      .shape = {5}, .dim = 0, .local_size = 8, .intervals = {{1, 0, 5}}, .end = 8};
  run_ranks(1, [&](Communicator& world) {
    save_checkpoint(world, folder.path("run"), 1, {{"w", "parameter", whole, at::arange(5.), {}}},
                    "{}");
  });
  const Checkpoint checkpoint(folder.path("run/checkpoint-1"));
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor value = at::full({8}, 9.0, dtype);
    checkpoint.load({{"w", "parameter", padded, value, {}}});
    CHECK(at::equal(value, at::tensor({9., 0., 1., 2., 3., 4., 9., 9.}).to(dtype)));
  }
}

TEST_CASE("a state that the checkpoint does not have is refused on every rank") {
  const TempDir folder;
  run_ranks(2, [&](Communicator& world) {
    const auto state = state_of(small_model(), world.rank(), 2, 1, 1);
    save_checkpoint(world, folder.path("run"), 1, state, "{}");
    const Checkpoint checkpoint = open_checkpoint(world, folder.path("run/checkpoint-1"));
    const auto refused = [&](const StateTensor& wanted) {
      return require_error(
          ErrorCode::kDataLoss,
          [&] {
            load_checkpoint(world, checkpoint,
                            world.rank() == 1 ? std::vector{wanted} : std::vector<StateTensor>{});
          },
          "load_checkpoint");
    };
    const TensorSlice slice{.shape = {7}, .end = 7};
    const std::string absent = refused({"other", "parameter", slice, at::zeros({7}), {}});
    require(absent.find("rank 1: ") == 0 && absent.find("has no tensor other (parameter)") > 0,
            absent);
    const std::string shape = refused({"h.0.bias", "exp_avg", slice, at::zeros({7}), {}});
    require(shape.find("h.0.bias (exp_avg) has shape [18], the model asks for [7]") !=
                std::string::npos,
            shape);
    // Tensors that no rank requests are listed.
    std::vector<StateTensor> few = state_of({{"scale", {}}}, world.rank(), 2, 1, 1);
    const LoadReport report = load_checkpoint(world, checkpoint, few);
    require(report.unused.size() == 6, report.unused.size(), " unused");
  });
}

TEST_CASE("an unfinished checkpoint that holds other files is nobody's to remove") {
  namespace fs = std::filesystem;
  const TempDir folder;
  fs::create_directories(folder.path("run/checkpoint-1.tmp"));
  fs::create_directories(folder.path("run/checkpoint-2.tmp"));
  fs::create_directories(folder.path("run/latest.tmp"));
  folder.write("run/checkpoint-1.tmp/thesis.tex", "x");
  folder.write("run/checkpoint-2.tmp/rank-0.safetensors", "x");
  run_ranks(1, [&](Communicator& world) {
    save_checkpoint(world, folder.path("run"), 2, state_of({{"scale", {}}}, 0, 1, 1, 1), "{}");
    const std::string said = require_error(
        ErrorCode::kDataLoss,
        [&] {
          save_checkpoint(world, folder.path("run"), 1, state_of({{"scale", {}}}, 0, 1, 1, 1),
                          "{}");
        },
        "save_checkpoint");
    require(said.find("holds other files than a checkpoint's") != said.npos, said);
  });
  CHECK(fs::exists(folder.path("run/checkpoint-1.tmp/thesis.tex")));
  CHECK_FALSE(fs::exists(folder.path("run/checkpoint-2.tmp")));
  CHECK(fs::exists(folder.path("run/latest.tmp")));
}

TEST_CASE("pieces that do not make up their tensors are refused before anything is kept") {
  const TempDir folder;
  run_ranks(2, [&](Communicator& world) {
    const TensorSlice slice{.shape = {8}, .begin = world.rank() * 4, .end = 7};
    const std::string said = require_error(
        ErrorCode::kInternal,
        [&] {
          save_checkpoint(world, folder.path("run"), 1,
                          {{"w", "parameter", slice, at::zeros({slice.numel()}), {}}}, "{}");
        },
        "save_checkpoint");
    require(said.find("rank 0: tensor w (parameter): elements of the local tensor [4, 7) are in "
                      "two pieces") == 0,
            said);
  });
  CHECK_FALSE(std::filesystem::exists(folder.path("run/checkpoint-1")));
  CHECK_FALSE(std::filesystem::exists(folder.path("run/checkpoint-1.tmp")));
}
