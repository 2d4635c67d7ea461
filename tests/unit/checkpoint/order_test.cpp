// SPDX-License-Identifier: MIT
// Order of a save's calls: a power loss at any time keeps everything durable by then.
#include <fcntl.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/checkpoint/states.h"

using namespace tessera;
using namespace tessera::test;

namespace {

// Tracks unsynchronised data: files with unwritten bytes, directories with unwritten names.
class DurabilityChecker : public FileSystem {
 public:
  std::vector<std::string> violations() const { return violations_; }
  int commits() const { return commits_; }

  int open(const std::string& path, int flags) override {
    const std::lock_guard lock(mutex_);
    const int file = FileSystem::open(path, flags);
    path_of_[file] = path;
    const bool names_matter = !path.ends_with(".tmp");  // latest.tmp is never searched for
    if ((flags & O_CREAT) != 0 && names_matter) unsynced_.insert(parent(path));
    return file;
  }
  int64_t write(int file, const void* bytes, size_t size, int64_t at) override {
    const std::lock_guard lock(mutex_);
    unsynced_.insert(path_of_[file]);
    return FileSystem::write(file, bytes, size, at);
  }
  int sync(int file) override {
    const std::lock_guard lock(mutex_);
    unsynced_.erase(path_of_[file]);
    return 0;
  }
  int rename(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(mutex_);
    for (const std::string& path : unsynced_) {
      if (path.starts_with(from))
        violations_.push_back(path + " is not durable when " + from + " is renamed");
    }
    if (to.ends_with("latest") && unsynced_.contains(run_)) {
      violations_.emplace_back("latest names a checkpoint whose name is not durable");
    }
    if (from.ends_with(".tmp") && from.find("checkpoint-") != from.npos) {
      ++commits_;
      run_ = parent(to);
      if (!std::filesystem::exists(from + "/manifest.json"))
        violations_.emplace_back("no manifest");
      unsynced_.insert(run_);
    }
    return FileSystem::rename(from, to);
  }
  int remove(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    const std::string manifest = parent(path) + "/manifest.json";
    if (path != manifest && std::filesystem::exists(manifest)) {
      violations_.push_back(path + " is removed while its manifest says that it is there");
    }
    if (path.ends_with(".safetensors") && unsynced_.contains(parent(path))) {
      violations_.push_back(path + " is removed before its manifest is durably gone");
    }
    if (path == manifest) unsynced_.insert(parent(path));
    return FileSystem::remove(path);
  }

 private:
  static std::string parent(const std::string& path) {
    return std::filesystem::path(path).parent_path();
  }

  std::mutex mutex_;
  std::map<int, std::string> path_of_;
  std::set<std::string> unsynced_;
  std::string run_;
  std::vector<std::string> violations_;
  int commits_ = 0;
};

}  // namespace

TEST_CASE("whatever names a file is written after the file is durable, and removed before it") {
  for (const bool asynchronous : {false, true}) {
    const TempDir folder;
    DurabilityChecker files;
    run_ranks(2, [&](Communicator& world) {
      CheckpointWriter writer(world, folder.path("run"),
                              {.total_limit = 1, .asynchronous = asynchronous, .files = &files});
      for (const int step : {1, 2, 3}) {
        writer.save(step, state_of(small_model(), world.rank(), 2, step, 1), "{}");
      }
      writer.wait();
    });
    CHECK(files.violations() == std::vector<std::string>{});
    CHECK(files.commits() == 3);
  }
}
