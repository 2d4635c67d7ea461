// SPDX-License-Identifier: MIT
#include "lib/metrics/resource_sampler.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <vector>

#include "tessera/metrics/resource_summary.h"
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
  if (child == 0) {  // allocates memory, reports it, waits for release
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
  {
    ResourceSampler sampler({.interval = std::chrono::milliseconds(1),
                             .pinned_bytes = [] { return std::optional<int64_t>(4096); }},
                            [&](const ResourceRecord& record) {
                              std::lock_guard lock(mutex);
                              records.push_back(record);
                              changed.notify_all();
                            });
    std::unique_lock lock(mutex);
    REQUIRE(changed.wait_for(lock, std::chrono::seconds(30), [&] { return records.size() >= 3; }));
  }
  const size_t at_end = records.size();
  CHECK(at_end >= 4);
  for (const ResourceRecord& record : records) {
    CHECK(record.cpu_rss_tree_bytes > 0);
    CHECK(record.pinned_bytes == 4096);
    CHECK(!record.gpu);
    if (record.cpu_util_ratio) CHECK((*record.cpu_util_ratio >= 0 && *record.cpu_util_ratio <= 1));
  }
}

TEST_CASE("the job's own GPUs are sampled, found by where they are plugged in") {
  // Once loaded, it is found under the driver's name.
  void* driver = dlopen(TESSERA_FAKE_NVML, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(driver != nullptr);
  const std::vector<std::string> own{"0000:9d:00.0", "0000:77:00.0", "0000:1a:00.0"};
  const GpuMonitor monitor(own);
  REQUIRE(monitor.gpus().size() == 2);  // no GPU has the second address
  CHECK(monitor.gpus()[0].index == 2);
  CHECK(monitor.gpus()[1].name == "Fake 0");
  CHECK(monitor.driver_version() == "1.2.3");
  ResourceSummary node;
  {
    ResourceSampler({.gpus = own}, [&](const ResourceRecord& sample) { node.add(sample); });
  }
  CHECK(node.gpu_used.peak == 3000);
  CHECK(node.gpu_used.least == 1000);
  CHECK(node.gpu_used.sum / static_cast<double>(node.gpu_used.count) == 2000);
  CHECK(node.gpu_util_sum / static_cast<double>(node.gpu_util_count) == Approx(0.2));
  dlclose(driver);
}

TEST_CASE("nodes together: GPUs count one by one, host memory is the largest node's") {
  const auto node = [](int64_t gpu_used, double utilisation, int64_t rss, int samples) {
    ResourceSummary summary;
    for (int i = 0; i < samples; ++i) {
      ResourceRecord sample;
      sample.gpu = 0;
      sample.gpu_mem_used_bytes = gpu_used + i;
      sample.gpu_util_ratio = utilisation;
      sample.cpu_rss_tree_bytes = rss;
      summary.add(sample);
    }
    return summary;
  };
  ResourceSummary job = node(1000, 0.2, 50, 3);
  job.add(ResourceSummary::from_bytes(node(5000, 0.8, 30, 1).bytes()));
  job.add(ResourceSummary::from_bytes(ResourceSummary().bytes()));  // a job without samples
  CHECK(job.gpu_used.peak_value() == Value(int64_t{5000}));
  CHECK(job.gpu_used.least_value() == Value(int64_t{1000}));
  CHECK(job.gpu_used.mean_value() == Value(int64_t{(1000 + 1001 + 1002 + 5000 + 2) / 4}));
  CHECK(job.gpu_util_sum / static_cast<double>(job.gpu_util_count) == Approx(0.35));
  CHECK(job.cpu_rss.peak == 50);
  CHECK(job.cpu_rss.least == 30);
  CHECK(job.cpu_pss.peak_value() == Value());
  CHECK_THROWS(ResourceSummary::from_bytes("short"));
}
