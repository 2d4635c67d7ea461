// SPDX-License-Identifier: MIT
#include "lib/ops/algorithm_cache.h"

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
using ops::AlgorithmCache;

namespace {

const AlgorithmCache::Kind kUp{1024, 4096, 1}, kDown{4096, 1024, 0};

AlgorithmCache::Algorithm algorithm(uint64_t number) {
  return {number, ~number, 0, 7, 0, 0, 0, number};
}

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace

TEST_CASE("algorithms are found by kind and size, and the nearest of the kind first") {
  AlgorithmCache cache("", "this GPU");
  CHECK_FALSE(cache.find(kUp, 512));
  CHECK(cache.nearest(kUp, 512).empty());
  cache.settle(kUp, 512, algorithm(1));
  cache.settle(kUp, 2048, algorithm(2));
  cache.settle(kUp, 2048, algorithm(3));  // the first algorithm is kept
  cache.settle(kDown, 1024, algorithm(4));
  CHECK(cache.find(kUp, 512) == algorithm(1));
  CHECK(cache.find(kUp, 2048) == algorithm(2));
  CHECK_FALSE(cache.find(kUp, 1024));
  using Sized = std::vector<std::pair<int64_t, AlgorithmCache::Algorithm>>;
  CHECK((cache.nearest(kUp, 1024) == Sized{{512, algorithm(1)}, {2048, algorithm(2)}}));
  CHECK((cache.nearest(kUp, 1600) == Sized{{2048, algorithm(2)}, {512, algorithm(1)}}));
  CHECK((cache.nearest(kDown, 9000) == Sized{{1024, algorithm(4)}}));
  CHECK(cache.nearest({1024, 4096, 2}, 512).empty());
}

TEST_CASE("the first process that settles an algorithm settles it for all, and for later runs") {
  const TempDir dir;
  const std::string path = dir.path("a/plans.txt");
  AlgorithmCache first(path, "this GPU"), second(path, "this GPU");
  CHECK_FALSE(std::filesystem::exists(path));  // nothing to store
  CHECK(first.settle(kUp, 512, algorithm(1)) == algorithm(1));
  CHECK(second.settle(kUp, 512, algorithm(2)) == algorithm(1));
  CHECK(second.settle(kDown, 512, algorithm(3)) == algorithm(3));
  CHECK(first.settle(kDown, 512, algorithm(4)) == algorithm(3));
  CHECK(first.settle(kUp, 512, algorithm(5)) == algorithm(1));
  CHECK(first.settle(kUp, 64, algorithm(6)) == algorithm(6));
  const AlgorithmCache later(path, "this GPU");
  CHECK(later.find(kUp, 512) == algorithm(1));
  CHECK(later.find(kDown, 512) == algorithm(3));
  CHECK(later.find(kUp, 64) == algorithm(6));
  CHECK(std::distance(std::filesystem::directory_iterator(dir.path("a")), {}) == 1);
}

TEST_CASE("threads that settle the same sizes at once end with the same algorithms") {
  const TempDir dir;
  constexpr int kThreads = 4;
  constexpr int64_t kSizes = 50;
  std::vector<std::vector<AlgorithmCache::Algorithm>> settled(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      AlgorithmCache cache(dir.path("plans.txt"), "this GPU");
      for (int64_t size = 0; size < kSizes; ++size) {
        settled[t].push_back(cache.settle(kUp, size, algorithm(t + 1)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 1; t < kThreads; ++t) CHECK((settled[t] == settled[0]));
  const AlgorithmCache later(dir.path("plans.txt"), "this GPU");
  for (int64_t size = 0; size < kSizes; ++size) CHECK(later.find(kUp, size) == settled[0][size]);
}

TEST_CASE("a file of algorithms that is broken or of another owner is read as far as it is good") {
  const TempDir dir;
  const std::string path = dir.path("plans.txt");
  AlgorithmCache made(path, "this GPU");
  made.settle(kUp, 512, algorithm(1));
  const std::string one = read_file(path);
  made.settle(kDown, 512, algorithm(2));
  const std::string good = read_file(path);
  const auto changed = [&](size_t at) {
    std::string text = good;
    text[at] ^= 1;
    return text;
  };
  for (const std::string& text : {std::string(), std::string("\n"), std::string("x"),
                                  std::string("tessera"), changed(3), good.substr(0, 9)}) {
    write(path, text);
    AlgorithmCache cache(path, "this GPU");
    CHECK_FALSE(cache.find(kUp, 512));
    CHECK(cache.settle(kUp, 512, algorithm(1)) == algorithm(1));
    CHECK(read_file(path) == one);  // the file was started anew
  }
  for (const std::string& text : {one + "x", one + "\n", changed(one.size()),
                                  changed(good.size() - 2), good.substr(0, good.size() - 1)}) {
    write(path, text);
    AlgorithmCache cache(path, "this GPU");
    CHECK(cache.find(kUp, 512) == algorithm(1));
    CHECK_FALSE(cache.find(kDown, 512));
    CHECK(cache.settle(kDown, 512, algorithm(2)) == algorithm(2));
    CHECK(read_file(path) == good);
  }
  CHECK_FALSE(AlgorithmCache(path, "that GPU").find(kUp, 512));
  CHECK_FALSE(AlgorithmCache(path, "this GPU 2").find(kUp, 512));
}

TEST_CASE("a file of algorithms that is made anew is read anew") {
  const TempDir dir;
  const std::string path = dir.path("plans.txt");
  AlgorithmCache cache(path, "this GPU");
  cache.settle(kUp, 512, algorithm(1));
  cache.settle(kUp, 64, algorithm(2));
  std::filesystem::remove(path);
  AlgorithmCache(path, "this GPU").settle(kDown, 512, algorithm(3));
  CHECK(cache.settle(kDown, 512, algorithm(4)) == algorithm(3));
  CHECK(cache.find(kUp, 64) == algorithm(2));
}

TEST_CASE("algorithms are of this run alone where no file can be written, or another holds it") {
  const TempDir dir;
  dir.write("file", "");
  AlgorithmCache cache(dir.path("file/plans.txt"), "this GPU");
  CHECK(cache.settle(kUp, 512, algorithm(1)) == algorithm(1));
  CHECK(cache.find(kUp, 512) == algorithm(1));
  const std::string path = dir.path("plans.txt");
  write(path, "");
  const int holder = ::open(path.c_str(), O_RDONLY);
  REQUIRE(::flock(holder, LOCK_EX) == 0);
  AlgorithmCache waiting(path, "this GPU");
  CHECK(waiting.settle(kUp, 512, algorithm(1)) == algorithm(1));
  CHECK(read_file(path).empty());
  ::close(holder);
}
