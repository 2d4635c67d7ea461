// SPDX-License-Identifier: MIT
#include "lib/ops/plan_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "lib/core/file.h"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using ops::PlanCache;

namespace {

const PlanCache::Kind kUp{1024, 4096, 1}, kDown{4096, 1024, 0};

PlanCache::Plan plan(uint64_t number) { return {number, ~number, 0, 7, 0, 0, 0, number}; }

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace

TEST_CASE("plans are found by kind and size, and the nearest of the kind first") {
  PlanCache cache("", "this GPU");
  CHECK_FALSE(cache.find(kUp, 512));
  CHECK(cache.nearest(kUp, 512).empty());
  cache.settle(kUp, 512, plan(1));
  cache.settle(kUp, 2048, plan(2));
  cache.settle(kUp, 2048, plan(3));  // the first plan is kept
  cache.settle(kDown, 1024, plan(4));
  CHECK(cache.find(kUp, 512) == plan(1));
  CHECK(cache.find(kUp, 2048) == plan(2));
  CHECK_FALSE(cache.find(kUp, 1024));
  using Sized = std::vector<std::pair<int64_t, PlanCache::Plan>>;
  CHECK((cache.nearest(kUp, 1024) == Sized{{512, plan(1)}, {2048, plan(2)}}));
  CHECK((cache.nearest(kUp, 1600) == Sized{{2048, plan(2)}, {512, plan(1)}}));
  CHECK((cache.nearest(kDown, 9000) == Sized{{1024, plan(4)}}));
  CHECK(cache.nearest({1024, 4096, 2}, 512).empty());
}

TEST_CASE("the first process that settles a plan settles it for all, and for later runs") {
  const TempDir dir;
  const std::string path = dir.path("a/plans.txt");
  PlanCache first(path, "this GPU"), second(path, "this GPU");
  CHECK_FALSE(std::filesystem::exists(path));  // nothing to store
  CHECK(first.settle(kUp, 512, plan(1)) == plan(1));
  CHECK(second.settle(kUp, 512, plan(2)) == plan(1));
  CHECK(second.settle(kDown, 512, plan(3)) == plan(3));
  CHECK(first.settle(kDown, 512, plan(4)) == plan(3));
  CHECK(first.settle(kUp, 512, plan(5)) == plan(1));
  CHECK(first.settle(kUp, 64, plan(6)) == plan(6));
  const PlanCache later(path, "this GPU");
  CHECK(later.find(kUp, 512) == plan(1));
  CHECK(later.find(kDown, 512) == plan(3));
  CHECK(later.find(kUp, 64) == plan(6));
  CHECK(std::distance(std::filesystem::directory_iterator(dir.path("a")), {}) == 1);
}

TEST_CASE("threads that settle the same sizes at once end with the same plans") {
  const TempDir dir;
  constexpr int kThreads = 4;
  constexpr int64_t kSizes = 50;
  std::vector<std::vector<PlanCache::Plan>> settled(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      PlanCache cache(dir.path("plans.txt"), "this GPU");
      for (int64_t size = 0; size < kSizes; ++size) {
        settled[t].push_back(cache.settle(kUp, size, plan(t + 1)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 1; t < kThreads; ++t) CHECK((settled[t] == settled[0]));
  const PlanCache later(dir.path("plans.txt"), "this GPU");
  for (int64_t size = 0; size < kSizes; ++size) CHECK(later.find(kUp, size) == settled[0][size]);
}

TEST_CASE("a file of plans that is broken or of another owner is read as far as it is good") {
  const TempDir dir;
  const std::string path = dir.path("plans.txt");
  PlanCache made(path, "this GPU");
  made.settle(kUp, 512, plan(1));
  const std::string one = read_file(path);
  made.settle(kDown, 512, plan(2));
  const std::string good = read_file(path);
  const auto changed = [&](size_t at) {
    std::string text = good;
    text[at] ^= 1;
    return text;
  };
  for (const std::string& text : {std::string(), std::string("\n"), std::string("x"),
                                  std::string("tessera"), changed(3), good.substr(0, 9)}) {
    write(path, text);
    PlanCache cache(path, "this GPU");
    CHECK_FALSE(cache.find(kUp, 512));
    CHECK(cache.settle(kUp, 512, plan(1)) == plan(1));
    CHECK(read_file(path) == one);  // the file was started anew
  }
  for (const std::string& text : {one + "x", one + "\n", changed(one.size()),
                                  changed(good.size() - 2), good.substr(0, good.size() - 1)}) {
    write(path, text);
    PlanCache cache(path, "this GPU");
    CHECK(cache.find(kUp, 512) == plan(1));
    CHECK_FALSE(cache.find(kDown, 512));
    CHECK(cache.settle(kDown, 512, plan(2)) == plan(2));
    CHECK(read_file(path) == good);
  }
  CHECK_FALSE(PlanCache(path, "that GPU").find(kUp, 512));
  CHECK_FALSE(PlanCache(path, "this GPU 2").find(kUp, 512));
}

TEST_CASE("a file of plans that is made anew is read anew") {
  const TempDir dir;
  const std::string path = dir.path("plans.txt");
  PlanCache cache(path, "this GPU");
  cache.settle(kUp, 512, plan(1));
  cache.settle(kUp, 64, plan(2));
  std::filesystem::remove(path);
  PlanCache(path, "this GPU").settle(kDown, 512, plan(3));
  CHECK(cache.settle(kDown, 512, plan(4)) == plan(3));
  CHECK(cache.find(kUp, 64) == plan(2));
}

TEST_CASE("plans are of this run alone where no file can be written, or another holds it") {
  const TempDir dir;
  dir.write("file", "");
  PlanCache cache(dir.path("file/plans.txt"), "this GPU");
  CHECK(cache.settle(kUp, 512, plan(1)) == plan(1));
  CHECK(cache.find(kUp, 512) == plan(1));
  const std::string path = dir.path("plans.txt");
  write(path, "");
  const int holder = ::open(path.c_str(), O_RDONLY);
  REQUIRE(::flock(holder, LOCK_EX) == 0);
  PlanCache waiting(path, "this GPU");
  CHECK(waiting.settle(kUp, 512, plan(1)) == plan(1));
  CHECK(read_file(path).empty());
  ::close(holder);
}
