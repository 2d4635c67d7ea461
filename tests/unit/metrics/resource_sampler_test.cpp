#include "tessera/metrics/resource_sampler.h"

#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <vector>

#include "tests/support/test.hpp"

using namespace tessera::metrics;

TEST_CASE("the process tree counts the memory of child processes") {
  constexpr size_t kBytes = 64 << 20;
  const ProcessTreeMemory alone = process_tree_memory(getpid());
  CHECK(alone.processes == 1);
  CHECK(alone.rss_bytes > 0);
  int ready[2], leave[2];
  REQUIRE(pipe(ready) == 0);
  REQUIRE(pipe(leave) == 0);
  const pid_t child = fork();
  if (child == 0) {  // touches memory, says so, waits to be let go
    std::vector<char> block(kBytes);
    std::memset(block.data(), 1, block.size());
    char byte = block[kBytes / 2];
    if (write(ready[1], &byte, 1) == 1 && read(leave[0], &byte, 1) == 1) _exit(0);
    _exit(1);
  }
  char byte = 0;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  const ProcessTreeMemory both = process_tree_memory(getpid());
  REQUIRE(write(leave[1], &byte, 1) == 1);
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(both.processes == 2);
  CHECK(both.rss_bytes >= alone.rss_bytes + static_cast<int64_t>(kBytes));
  if (both.pss_bytes) CHECK(*both.pss_bytes <= both.rss_bytes);
  for (int fd : {ready[0], ready[1], leave[0], leave[1]}) close(fd);
}

TEST_CASE("the sampler reports at once, periodically and at the end, and stops when destroyed") {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<ResourceRecord> records;
  GpuMonitor gpus;
  const size_t per_sample = std::max<size_t>(1, gpus.gpus().size());
  {
    ResourceSampler sampler({.interval = std::chrono::milliseconds(1),
                             .pinned_bytes = [] { return std::optional<int64_t>(4096); }},
                            [&](const ResourceRecord& record) {
                              std::lock_guard lock(mutex);
                              records.push_back(record);
                              changed.notify_all();
                            });
    std::unique_lock lock(mutex);
    REQUIRE(changed.wait_for(lock, std::chrono::seconds(30),
                             [&] { return records.size() >= 3 * per_sample; }));
  }
  const size_t at_end = records.size();
  CHECK(at_end >= 4 * per_sample);
  for (const ResourceRecord& record : records) {
    CHECK(record.cpu_rss_tree_bytes > 0);
    CHECK(record.pinned_bytes == 4096);
    CHECK(record.gpu.has_value() == !gpus.gpus().empty());
    if (record.cpu_util_ratio) CHECK((*record.cpu_util_ratio >= 0 && *record.cpu_util_ratio <= 1));
  }
}
