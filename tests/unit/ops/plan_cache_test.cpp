#include "lib/ops/plan_cache.h"

#include <filesystem>
#include <fstream>

#include "tessera/core/file.h"
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
  cache.add(kUp, 512, plan(1));
  cache.add(kUp, 2048, plan(2));
  cache.add(kUp, 2048, plan(3));  // the first one stays
  cache.add(kDown, 1024, plan(4));
  CHECK(cache.find(kUp, 512) == plan(1));
  CHECK(cache.find(kUp, 2048) == plan(2));
  CHECK_FALSE(cache.find(kUp, 1024));
  using Sized = std::vector<std::pair<int64_t, PlanCache::Plan>>;
  CHECK((cache.nearest(kUp, 1024) == Sized{{512, plan(1)}, {2048, plan(2)}}));
  CHECK((cache.nearest(kUp, 1600) == Sized{{2048, plan(2)}, {512, plan(1)}}));
  CHECK((cache.nearest(kDown, 9000) == Sized{{1024, plan(4)}}));
  CHECK(cache.nearest({1024, 4096, 2}, 512).empty());
}

TEST_CASE("a later run reads the plans, and those that others have written meanwhile stay") {
  const TempDir dir;
  const std::string path = dir.path("a/plans.txt");
  PlanCache first(path, "this GPU"), second(path, "this GPU");
  first.save();
  CHECK_FALSE(std::filesystem::exists(path));  // there is nothing to keep
  first.add(kUp, 512, plan(1));
  CHECK(first.changed());
  first.save();
  CHECK_FALSE(first.changed());
  second.add(kUp, 512, plan(2));
  second.add(kDown, 512, plan(3));
  second.save();
  PlanCache later(path, "this GPU");
  CHECK(later.find(kUp, 512) == plan(2));
  CHECK(later.find(kDown, 512) == plan(3));
  CHECK_FALSE(later.changed());
  first.add(kUp, 64, plan(4));
  first.save();
  PlanCache last(path, "this GPU");
  CHECK(last.find(kUp, 512) == plan(1));
  CHECK(last.find(kDown, 512) == plan(3));
  CHECK(last.find(kUp, 64) == plan(4));
  CHECK(std::distance(std::filesystem::directory_iterator(dir.path("a")), {}) == 1);
}

TEST_CASE("a file of plans that is broken or of another owner is ignored and replaced") {
  const TempDir dir;
  const std::string path = dir.path("plans.txt");
  PlanCache made(path, "this GPU");
  made.add(kUp, 512, plan(1));
  made.add(kDown, 512, plan(2));
  made.save();
  const std::string good = read_file(path);
  std::string changed = good;
  changed[good.size() / 2] ^= 1;
  for (const std::string& text :
       {std::string(), std::string("\n"), std::string("x"), std::string("tessera"), changed,
        good.substr(0, good.size() - 1), good.substr(0, good.size() / 2), good + "\n"}) {
    write(path, text);
    CHECK_FALSE(PlanCache(path, "this GPU").find(kUp, 512));
  }
  write(path, good);
  CHECK(PlanCache(path, "this GPU").find(kUp, 512));
  CHECK_FALSE(PlanCache(path, "that GPU").find(kUp, 512));
  CHECK_FALSE(PlanCache(path, "this GPU 2").find(kUp, 512));
  write(path, changed);
  made.add(kUp, 64, plan(3));
  made.save();
  CHECK(PlanCache(path, "this GPU").find(kUp, 64) == plan(3));
}

TEST_CASE("where no file can be written the plans are of this run alone") {
  const TempDir dir;
  dir.write("file", "");
  PlanCache cache(dir.path("file/plans.txt"), "this GPU");
  cache.add(kUp, 512, plan(1));
  cache.save();
  CHECK(cache.find(kUp, 512) == plan(1));
}
