// SPDX-License-Identifier: MIT
#include <sstream>

#include "lib/tools/env/environment.h"
#include "lib/tools/env/report.h"
#include "tessera/core/json.h"
#include "tests/support/test.hpp"
#include "tests/support/text.hpp"

using namespace tessera;
using namespace tessera::programs;
using tessera::test::has;

namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// A host with two GPUs and no warnings.
HostFacts good_host() {
  const GpuFacts gpu{.name = "GPU",
                     .total_bytes = 80 * kGiB,
                     .used_bytes = kGiB / 2,
                     .sm_mhz = 1900,
                     .most_mhz = 1980,
                     .nvlinks = 18,
                     .paths = {"NVLink", "NVLink"}};
  HostFacts host;
  host.cores = 32;
  host.memory_bytes = 256 * kGiB;
  host.available_bytes = 200 * kGiB;
  host.shm_bytes = 8 * kGiB;
  host.gpus = {gpu, gpu};
  host.usable_gpus = 2;
  host.transports = {{"nccl", "NCCL 2.28.9", ""}, {"tcp", "", ""}};
  return host;
}

std::string only_warning(const HostFacts& host) {
  const std::vector<std::string> all = warnings_of(host);
  REQUIRE(all.size() == 1);
  return all.front();
}

}  // namespace

TEST_CASE("a host is warned of for what hurts, and for nothing else") {
  CHECK(warnings_of(good_host()).empty());
  HostFacts host = good_host();
  SECTION("one core a rank") {
    host.launch = {.launcher = "mpirun", .world_size = 32, .local_size = 32};
    CHECK(has(only_warning(host), "one core a rank"));
    host.launch.local_size = 33;
    CHECK(has(only_warning(host), "32 core(s) for 33 ranks"));
  }
  SECTION("ranks that the launcher has bound to cores of their own") {
    host.launch = {.launcher = "mpirun", .world_size = 2, .local_size = 2};
    host.cores = 1;
    CHECK(has(only_warning(host), "1 core(s) for 2 ranks"));
    host.launcher_cores = 32;
    CHECK(has(only_warning(host), "one core a rank"));
    host.cores = 16;
    CHECK(warnings_of(host).empty());
  }
  SECTION("GPUs without NVLink") {
    host.gpus[0].paths = {"itself", "host bridge"};
    CHECK(has(only_warning(host), "GPUs 0 and 1 have no NVLink (they share: host bridge)"));
  }
  SECTION("a GPU that others use") {
    host.gpus[1].used_bytes = 5 * kGiB;
    CHECK(has(only_warning(host), "GPU 1: 5120 MiB are in use"));
  }
  SECTION("clocks that cannot be read") {
    host.gpus[0].sm_mhz.reset();
    CHECK(has(only_warning(host), "GPU 0: its clocks"));
  }
  SECTION("GPUs that the build does not use") {
    host.usable_gpus = 0;
    CHECK(has(only_warning(host), "TESSERA_WITH_CUDA"));
  }
  SECTION("limits") {
    host.locked_limit_bytes = 64 << 10;
    CHECK(has(only_warning(host), "64 KiB may be locked"));
    host.locked_limit_bytes.reset();
    host.open_files_limit = 1024;
    CHECK(has(only_warning(host), "only 1024 files"));
    host.open_files_limit = 4096;
    host.shm_bytes = 64 << 20;
    CHECK(has(only_warning(host), "/dev/shm has 64 MiB"));
    host.shm_bytes = kGiB;
    host.available_bytes = 20 * kGiB;
    CHECK(has(only_warning(host), "20480 MiB are free"));
  }
  SECTION("a transport that is there but of no use") {
    host.transports[0].unusable_because = "the driver is missing";
    CHECK(has(only_warning(host), "NCCL cannot be used: the driver is missing"));
  }
}

TEST_CASE("tessera-env says the same as lines and as JSON") {
  std::ostringstream lines, json, errors;
  REQUIRE(run_env({"--measure", "false"}, lines, errors) == 0);
  REQUIRE(run_env({"--seconds", "0.01", "--json"}, json, errors) == 0);
  CHECK(errors.str().empty());
  const Json report = Json::parse(json.str(), {}, "output");
  CHECK(has(lines.str(), report.at("versions").at("LibTorch").as_string()));
  CHECK(has(lines.str(), report.at("host").at("system").as_string()));
  CHECK(report.at("ranks").at("tcp").as_string() == "usable");
  const auto rates = report.at("bandwidth").members();
  REQUIRE_FALSE(rates.empty());
  CHECK(std::stod(rates.front().second.as_string()) > 0);
  CHECK(report.at("warnings").is_array());
}

TEST_CASE("tessera-env refuses what it cannot do") {
  std::ostringstream out, errors;
  CHECK(run_env({"--seconds", "0"}, out, errors) == 2);
  CHECK(run_env({"--seconds", "0.01", "--directory", "/nowhere/at/all"}, out, errors) == 4);
  CHECK(has(errors.str(), "/nowhere/at/all: cannot be written: No such file"));
}
