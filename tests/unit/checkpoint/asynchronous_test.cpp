// SPDX-License-Identifier: MIT
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/checkpoint/states.h"

using namespace tessera;
using namespace tessera::test;

namespace {

// Blocks writes of a page or more until released.
class SlowFileSystem : public FileSystem {
 public:
  int64_t write(int file, const void* bytes, size_t size, int64_t at) override {
    std::unique_lock lock(mutex_);
    if (size >= 4096) changed_.wait(lock, [&] { return let_through_; });
    return FileSystem::write(file, bytes, size, at);
  }
  void let_through() {
    const std::lock_guard lock(mutex_);
    let_through_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool let_through_ = false;
};

// Rank 1's file cannot be created.
struct FullForRankOne : FileSystem {
  std::atomic<bool> full = true;
  int open(const std::string& path, int flags) override {
    errno = ENOSPC;
    return full && path.ends_with("rank-1.safetensors") ? -1 : FileSystem::open(path, flags);
  }
};

std::vector<StateTensor> state_at(Communicator& world, double step) {
  return state_of(small_model(), world.rank(), world.size(), step, 1);
}

// A step of the run: a collective, and changes of the state.
void step(Communicator& world, const std::vector<StateTensor>& state) {
  for (const StateTensor& tensor : state) tensor.value.add_(1);
  world.all_reduce(at::ones({1})).wait();
}

std::vector<SavedCheckpoint> run_until_saved(Communicator& world, CheckpointWriter& writer,
                                             const std::vector<StateTensor>& state) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (std::chrono::steady_clock::now() < deadline) {
    step(world, state);
    std::vector<SavedCheckpoint> saved = writer.poll();
    if (!saved.empty()) return saved;
  }
  return {};
}

// Calls use(world, writer) on every rank; the writer saves asynchronously.
template <typename Use>
void beside_the_run(int ranks, const TempDir& folder, FileSystem& files, const Use& use) {
  run_ranks(ranks, [&](Communicator& world) {
    CheckpointWriter writer(world, folder.path("run"), {.asynchronous = true, .files = &files});
    use(world, writer);
  });
}

}  // namespace

TEST_CASE("an asynchronous save keeps the state of its step while the run goes on") {
  const TempDir folder;
  SlowFileSystem files;
  beside_the_run(3, folder, files, [&](Communicator& world, CheckpointWriter& writer) {
    const auto state = state_at(world, 5);
    writer.save(5, state, R"({"a":1})");
    for (int i = 0; i < 20; ++i) {
      step(world, state);
      require(writer.poll().empty(), "the disk stands still");
    }
    if (world.rank() == 0) files.let_through();
    const auto saved = run_until_saved(world, writer, state);
    require(saved.size() == 1 && saved[0].step == 5, "one checkpoint");
    require(saved[0].bytes > 0 && saved[0].stall_s < saved[0].write_s, "its figures");
    require(writer.wait().empty(), "nothing is under way");
  });
  require_loads(folder.path("run/checkpoint-5"), 5, small_model());
}

TEST_CASE("a save waits for the one before, and what is under way at the end is waited for") {
  const TempDir folder;
  run_ranks(2, [&](Communicator& world) {
    CheckpointWriter writer(world, folder.path("run"), {.asynchronous = true});
    for (const int number : {1, 2, 3}) {
      const auto state = state_at(world, number);
      writer.save(number, state, "{}");
      step(world, state);
    }
    const auto saved = writer.wait();
    require(saved.size() == 3 && saved[0].step == 1 && saved[2].step == 3, "all, in order");
  });
  for (const int number : {1, 2, 3}) {
    require_loads(folder.path("run/checkpoint-" + std::to_string(number)), number, small_model());
  }
}

TEST_CASE(
    "late copies are complete before the update, and what forward changes is copied at once") {
  const TempDir folder;
  run_ranks(2, [&](Communicator& world) {
    CheckpointWriter writer(world, folder.path("run"), {.asynchronous = true, .late_copies = true});
    for (const int number : {1, 2}) {
      const int64_t numel = int64_t{8} << 20;
      const TensorSlice mine{
          .shape = {2 * numel}, .begin = world.rank() * numel, .end = (world.rank() + 1) * numel};
      const TensorSlice few{.shape = {2}, .begin = world.rank(), .end = world.rank() + 1};
      const auto value = [&](int64_t size) { return at::full({size}, number * 1.0, at::kFloat); };
      const std::vector<StateTensor> state = {{"w", "exp_avg", mine, value(numel), {}},
                                              {"mean", "buffer", few, value(1), {}},
                                              {"strategy", "steps_begun", few, value(1), {}}};
      writer.save(number, state, "{}");
      state[1].value.fill_(-1);  // as forward does
      state[2].value.fill_(-1);
      writer.before_update();
      state[0].value.fill_(-1);
      writer.before_update();  // before the next step's update: nothing to wait for
    }
    require(writer.wait().size() == 2, "both");
  });
  for (const int number : {1, 2}) {
    const Checkpoint checkpoint(folder.path("run/checkpoint-" + std::to_string(number)));
    for (const auto& [key, tensor] : checkpoint.manifest().tensors) {
      INFO(key.title());
      CHECK(checkpoint.read(key).eq(number).all().item<bool>());
    }
  }
}

TEST_CASE("what fails beside the run is an error of a later call on every rank") {
  const TempDir folder;
  FullForRankOne files;
  beside_the_run(2, folder, files, [&](Communicator& world, CheckpointWriter& writer) {
    const auto state = state_at(world, 1);
    writer.save(1, state, "{}");
    const std::string said = require_error(
        ErrorCode::kDataLoss, [&] { run_until_saved(world, writer, state); }, "poll");
    require(said.find("rank 1: ") == 0 && said.find("rank-1.safetensors: cannot be created: No "
                                                    "space left on device") != said.npos,
            said);
    world.barrier();
    require(find_checkpoint(folder.path("run")).path.empty(), "nothing stays");
    require(find_checkpoint(folder.path("run")).skipped.empty(), "not even a part");
    world.barrier();
    files.full = false;
    writer.save(2, state_at(world, 2), "{}");
    require(writer.wait().size() == 1, "the next save is an ordinary one");
  });
  require_loads(folder.path("run/checkpoint-2"), 2, small_model());
}
