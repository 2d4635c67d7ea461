// SPDX-License-Identifier: MIT
#include "tessera/checkpoint/checkpoint_writer.h"

#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/checkpoint/states.h"

using namespace tessera;
using namespace tessera::test;
using tessera::test::contains;
namespace fs = std::filesystem;

namespace {

void save(CheckpointWriter& writer, Communicator& world, int64_t step) {
  writer.save(step, state_of(small_model(), world.rank(), world.size(), step, 1), "{}");
}

std::vector<int64_t> complete_steps(const std::string& directory) {
  std::vector<int64_t> steps;
  std::optional<int64_t> before;
  for (;;) {
    const FoundCheckpoint found = find_checkpoint(directory, before);
    if (found.path.empty()) return steps;
    before = Checkpoint(found.path).manifest().step;
    steps.push_back(*before);
  }
}

}  // namespace

TEST_CASE("the limit removes the oldest checkpoints, but neither the newest nor the kept one") {
  const TempDir folder;
  const std::string run = folder.path("run");
  run_ranks(2, [&](Communicator& world) {
    CheckpointWriter writer(world, run, {.total_limit = 2});
    for (const int64_t step : {1, 2, 3}) save(writer, world, step);
    require(writer.poll().size() == 3, "three were saved");
    require(writer.poll().empty(), "and said once");
    world.barrier();
    require(complete_steps(run) == std::vector<int64_t>{3, 2}, "1 is gone");
    world.barrier();
    writer.keep(2);
    for (const int64_t step : {4, 5}) save(writer, world, step);
  });
  CHECK(complete_steps(run) == std::vector<int64_t>{5, 2});
  CHECK_FALSE(fs::exists(run + "/checkpoint-1"));
  run_ranks(1, [&](Communicator& world) {
    CheckpointWriter writer(world, run, {.total_limit = 1});
    save(writer, world, 0);  // the latest save, although not the highest step
  });
  CHECK(complete_steps(run) == std::vector<int64_t>{0});
}

TEST_CASE("a checkpoint that exists is not overwritten, and one of an abandoned run set aside") {
  const TempDir folder;
  const std::string run = folder.path("run");
  run_ranks(2, [&](Communicator& world) {
    CheckpointWriter writer(world, run);
    for (const int64_t step : {10, 20, 30}) save(writer, world, step);
    const std::string said = require_error(
        ErrorCode::kDataLoss, [&] { save(writer, world, 20); }, "save");
    require(said.find("checkpoint-20: already exists and is not overwritten") != said.npos, said);
    writer.resume_from(10);
    world.barrier();
    require(complete_steps(run) == std::vector<int64_t>{10}, "later ones are not found");
    world.barrier();
    save(writer, world, 20);
    writer.resume_from(10);
  });
  CHECK(complete_steps(run) == std::vector<int64_t>{10});
  for (const char* name : {"checkpoint-20.old", "checkpoint-30.old", "checkpoint-20.old2"}) {
    CHECK(fs::exists(run + "/" + name + "/manifest.json"));
  }
}

TEST_CASE("a second job that writes to the same directory is refused by name") {
  const TempDir folder;
  const std::string run = folder.path("run");
  run_ranks(1, [&](Communicator& world) {
    const CheckpointWriter writer(world, run);
    const std::string said = require_error(
        ErrorCode::kDataLoss, [&] { CheckpointWriter(world, run); }, "a second writer");
    require(said.find("another job writes here (process " + std::to_string(::getpid()) + " on ") !=
                said.npos,
            said);
  });
  run_ranks(1, [&](Communicator& world) { CheckpointWriter(world, run); });  // unlocked again
}

TEST_CASE("a full disk is noticed before anything is written") {
  struct FullDisk : FileSystem {
    int64_t free_bytes(const std::string&) override { return int64_t{1} << 20; }
  } files;
  const TempDir folder;
  run_ranks(2, [&](Communicator& world) {
    CheckpointWriter writer(world, folder.path("run"), {.files = &files});
    const std::string said = require_error(
        ErrorCode::kDataLoss, [&] { save(writer, world, 1); }, "save");
    require(said.find("the checkpoint of step 1 needs 1 MiB, 1 MiB are free") != said.npos, said);
  });
  CHECK_FALSE(fs::exists(folder.path("run/checkpoint-1.tmp")));
}

TEST_CASE("a directory that cannot be made is named") {
  const TempDir folder;
  folder.write("run", "a file");
  run_ranks(2, [&](Communicator& world) {
    const std::string said = require_error(
        ErrorCode::kDataLoss, [&] { CheckpointWriter(world, folder.path("run/x")); }, "a writer");
    require(said.find("rank 0: " + folder.path("run/x") + ": cannot be created: ") == 0, said);
  });
}

TEST_CASE("what a run says of itself must be a JSON object") {
  const TempDir folder;
  run_ranks(2, [&](Communicator& world) {
    for (const char* run : {"", "{", "[1]"}) {
      require_error(
          ErrorCode::kInvalidArgument,
          [&] { save_checkpoint(world, folder.path("run"), 1, {}, run); }, "save_checkpoint");
    }
  });
  CHECK(find_checkpoint(folder.path("run")).path == "");
}
