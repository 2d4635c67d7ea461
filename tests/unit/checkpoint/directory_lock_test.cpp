// SPDX-License-Identifier: MIT
#include "lib/checkpoint/directory_lock.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "tests/support/messages.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/checkpoint/faulty_file_system.h"

using namespace tessera;
using namespace tessera::test;
using tessera::test::contains;
namespace fs = std::filesystem;

TEST_CASE("a locked directory refuses a second job by name, until the first one ends") {
  const TempDir folder;
  const std::string run = folder.path("a/run");
  {
    DirectoryLock lock(run);
    const std::string said = error_of(ErrorCode::kDataLoss, [&] { DirectoryLock second(run); });
    CHECK_THAT(said, contains(concat("another job writes here (process ", ::getpid(), " on ")));
    lock.keep();
  }
  CHECK(fs::exists(run + "/" + DirectoryLock::kFile));
  CHECK_NOTHROW(DirectoryLock(run));
}

TEST_CASE("a job that wrote nothing leaves nothing, and what others made stays") {
  const TempDir folder;
  { DirectoryLock lock(folder.path("a/b/c")); }
  CHECK_FALSE(fs::exists(folder.path("a")));
  fs::create_directories(folder.path("a"));
  { DirectoryLock lock(folder.path("a/b")); }
  CHECK(fs::is_empty(folder.path("a")));
  {
    DirectoryLock lock(folder.path("a/b"));
    folder.write("a/b/mine", "text");
  }
  CHECK(fs::exists(folder.path("a/b/mine")));
}

TEST_CASE("what a killed job left locked is free") {
  const TempDir folder;
  const std::string run = folder.path("run");
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const DirectoryLock lock(run);
    ::kill(::getpid(), SIGKILL);
  }
  REQUIRE(waitpid(child, nullptr, 0) == child);
  REQUIRE(fs::exists(run + "/" + DirectoryLock::kFile));
  CHECK_NOTHROW(DirectoryLock(run));
}

TEST_CASE("of processes that lock and leave at once no two ever hold a directory together") {
  const TempDir folder;
  const std::string run = folder.path("run"), proof = folder.path("proof");
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    for (int round = 0; round < 300; ++round) {
      try {
        const DirectoryLock lock(run);
        if (::mkdir(proof.c_str(), 0755) != 0) _exit(1);  // another process holds it
        ::rmdir(proof.c_str());
      } catch (const Error& error) {
        if (std::string(error.what()).find("another job") == std::string::npos) _exit(2);
      }
    }
    _exit(0);
  }
  for (const pid_t child : children) {
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
}

TEST_CASE("a lock file that its holder removes before it is free is no lock") {
  struct Leaving : FileSystem {
    int open(const std::string& path, int flags) override {
      const int file = FileSystem::open(path, flags);
      if (!std::exchange(left, true)) fs::remove(path);
      return file;
    }
    bool left = false;
  } files;
  const TempDir folder;
  const DirectoryLock lock(folder.path("run"), files);
  CHECK(fs::exists(folder.path("run/checkpoint.lock")));
  CHECK_THAT(error_of(ErrorCode::kDataLoss, [&] { DirectoryLock second(folder.path("run")); }),
             contains("another job writes here"));
}

TEST_CASE("where nothing can be written the lock says so, and leaves nothing") {
  for (int call = 0; call < 2; ++call) {  // open and write
    const TempDir folder;
    FaultyFileSystem files(call, FaultyFileSystem::Fault::kOnce, ENOSPC);
    const std::string said =
        error_of(ErrorCode::kDataLoss, [&] { DirectoryLock lock(folder.path("run"), files); });
    CHECK_THAT(said, contains(folder.path("run")) && contains("No space left on device"));
    CHECK_FALSE(fs::exists(folder.path("run")));
  }
}
