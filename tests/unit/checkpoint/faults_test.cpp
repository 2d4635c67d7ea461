// SPDX-License-Identifier: MIT
// Every failing call of a save, and a kill at every call.
#include <ATen/Parallel.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <iostream>
#include <map>

#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/checkpoint/faulty_file_system.h"
#include "tests/unit/checkpoint/states.h"

using namespace tessera;
using namespace tessera::test;
using Fault = FaultyFileSystem::Fault;

namespace {

constexpr int kRanks = 2;

void save_step(const std::string& directory, int64_t step, FileSystem& files, bool asynchronous) {
  run_ranks(kRanks, [&](Communicator& world) {
    const auto state = state_of(small_model(), world.rank(), kRanks, step, 1);
    save_checkpoint(world, directory, step, state, "{}",
                    {.total_limit = 1, .asynchronous = asynchronous, .files = &files});
  });
}

void save_step(const std::string& directory, int64_t step) {
  FaultyFileSystem files(FaultyFileSystem::kNever, Fault::kOnce, 0);
  save_step(directory, step, files, false);
}

// Step of the checkpoint found after a save of step 2 over step 1's; it loads.
int64_t found_step(const std::string& directory) {
  const FoundCheckpoint found = find_checkpoint(directory);
  REQUIRE(found.path != "");
  const int64_t step = Checkpoint(found.path).manifest().step;
  REQUIRE((step == 1 || step == 2));
  require_loads(found.path, static_cast<double>(step), small_model());
  return step;
}

// The job's next run saves normally and leaves nothing else behind.
void require_goes_on(const std::string& directory) {
  save_step(directory, 3);
  require_loads(directory + "/checkpoint-3", 3, small_model());
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    INFO(name);
    REQUIRE((name == "checkpoint-3" || name == "checkpoint.lock" || name == "latest" ||
             !std::filesystem::exists(entry.path() / "manifest.json")));
    REQUIRE_FALSE(name.ends_with(".tmp"));
  }
  REQUIRE(bytes_of(directory + "/latest") == "checkpoint-3\n");
}

int calls_of_a_save() {
  const TempDir folder;
  FaultyFileSystem files(FaultyFileSystem::kNever, Fault::kOnce, 0);
  save_step(folder.path("run"), 1, files, false);
  const int before = files.calls();
  save_step(folder.path("run"), 2, files, false);
  return files.calls() - before;
}

}  // namespace

TEST_CASE("whichever call of a save fails, the previous or the new checkpoint loads") {
  const bool asynchronous = GENERATE(false, true);
  const int calls = calls_of_a_save();
  REQUIRE(calls > 30);
  std::map<std::string, int> outcomes;
  const std::pair<Fault, int> faults[] = {{Fault::kOnce, EIO}, {Fault::kFull, ENOSPC}};
  for (const auto& [fault, error] : faults) {
    for (int call = 0; call < calls; ++call) {
      const TempDir folder;
      const std::string directory = folder.path("run");
      save_step(directory, 1);
      FaultyFileSystem files(call, fault, error);
      const std::string said =
          error_of(ErrorCode::kDataLoss, [&] { save_step(directory, 2, files, asynchronous); });
      INFO("call " << call << ": " << files.failed() << ": " << said);
      REQUIRE(files.failed() != "");
      if (said != "no error") {
        CHECK(said.find(std::strerror(error)) != std::string::npos);
        CHECK(said.starts_with("rank "));
        CHECK(said.find(directory) != std::string::npos);
      }
      const int64_t step = found_step(directory);
      if (said == "no error") CHECK(step == 2);
      ++outcomes[concat(std::strerror(error), ": ", said == "no error" ? "saved" : "refused",
                        ", step ", step, " loads")];
      require_goes_on(directory);
    }
  }
  for (const auto& [outcome, count] : outcomes) std::cout << outcome << ": " << count << "\n";
}

TEST_CASE("killed at any call of a save, the previous or the new checkpoint loads") {
  const bool asynchronous = GENERATE(false, true);
  const int calls = calls_of_a_save();
  std::map<int64_t, int> outcomes;
  for (int call = 0; call < calls; ++call) {
    const TempDir folder;
    const std::string directory = folder.path("run");
    save_step(directory, 1);
    const pid_t child = ::fork();
    if (child == 0) {
      at::set_num_threads(1);  // LibTorch creates its pools now, before several threads would
      FaultyFileSystem files(call, Fault::kKill, 0);
      save_step(directory, 2, files, asynchronous);
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    INFO("call " << call << ", status " << status);
    REQUIRE((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    ++outcomes[found_step(directory)];
    require_goes_on(directory);
  }
  for (const auto& [step, count] : outcomes) {
    std::cout << "killed: step " << step << " loads: " << count << "\n";
  }
}
