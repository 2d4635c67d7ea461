// SPDX-License-Identifier: MIT
#include "lib/tools/env/environment.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "lib/core/host_memory.h"
#include "lib/core/host_threads.h"
#include "lib/metrics/resource_sampler.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name") && line.find(": ") != line.npos) {
      return line.substr(line.find(": ") + 2);
    }
  }
  return "";
}

int numa_nodes() {
  std::error_code error;
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/devices/system/node", error)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("node") && name.find_first_not_of("0123456789", 4) == name.npos) ++count;
  }
  return count;
}

std::optional<int64_t> limit_of(__rlimit_resource resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<int64_t>(limit.rlim_cur);
}

std::map<std::string, std::string> variables() {
  constexpr std::array<std::string_view, 4> kPrefixes{"NCCL_", "TESSERA_", "OMP_", "CUDA_"};
  constexpr std::array<std::string_view, 3> kNames{"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
                                                   "LD_PRELOAD"};
  std::map<std::string, std::string> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equal = text.find('=');
    if (equal == text.npos) continue;
    const std::string_view name = text.substr(0, equal);
    const bool counts =
        std::ranges::count(kNames, name) > 0 ||
        std::ranges::any_of(kPrefixes, [&](auto prefix) { return name.starts_with(prefix); });
    const bool secret = name.find("SECRET") != name.npos;
    if (counts) found.emplace(name, secret ? "(set)" : text.substr(equal + 1));
  }
  return found;
}

std::vector<GpuFacts> gpus_of(const metrics::GpuMonitor& monitor) {
  std::vector<GpuFacts> gpus;
  for (size_t i = 0; i < monitor.gpus().size(); ++i) {
    const auto clocks = monitor.clocks(i);
    GpuFacts gpu{.name = monitor.gpus()[i].name,
                 .used_bytes = monitor.read(i).memory_used_bytes.value_or(0),
                 .sm_mhz = clocks.sm_mhz,
                 .most_mhz = clocks.most_mhz,
                 .nvlinks = monitor.nvlinks(i),
                 .paths = {}};
    for (size_t j = 0; j < monitor.gpus().size(); ++j) {
      gpu.paths.push_back(i == j ? "itself" : monitor.path_between(i, j));
    }
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

int cores_of(pid_t process) {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(process, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
}

}  // namespace

HostFacts read_host() {
  HostFacts host;
  utsname system{};
  if (uname(&system) == 0) host.kernel = concat(system.sysname, " ", system.release);
  host.cpu = cpu_model();
  host.cores = static_cast<int>(allowed_cores().size());
  host.launcher_cores = cores_of(getppid());
  host.numa_nodes = numa_nodes();
  host.memory_bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  host.available_bytes = available_host_memory();
  struct statvfs shm {};
  if (statvfs("/dev/shm", &shm) == 0) {
    host.shm_bytes = static_cast<int64_t>(shm.f_bavail * shm.f_frsize);
  }
  host.locked_limit_bytes = limit_of(RLIMIT_MEMLOCK);
  host.open_files_limit = limit_of(RLIMIT_NOFILE);
  const metrics::GpuMonitor monitor;
  host.driver = monitor.driver_version();
  host.gpus = gpus_of(monitor);
  host.usable_gpus = gpu_count();
  for (size_t i = 0; i < host.gpus.size() && static_cast<int>(i) < host.usable_gpus; ++i) {
    const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(i));
    host.gpus[i].total_bytes = device_memory(device).second;
  }
  host.launch = detect_launch();
  host.transports = describe_transports(host.launch);
  host.variables = variables();
  return host;
}

std::vector<std::string> warnings_of(const HostFacts& host) {
  std::vector<std::string> all;
  const auto warn = [&](const auto&... text) { all.push_back(concat(text...)); };
  const int ranks = host.launch.local_size;
  const bool bound = host.cores < host.launcher_cores;  // binds each rank to its own cores
  const int cores = bound ? host.launcher_cores : host.cores;
  if (cores < ranks) {
    warn(cores, " core(s) for ", ranks, " ranks of this host: they take turns");
  } else if (ranks > 1 && (bound ? host.cores : host.cores / ranks) < 2) {
    warn(
        "one core a rank: offload, asynchronous saves and data loading have none of their own; "
        "mpirun needs --bind-to none to give a rank more");
  }
  if (!host.gpus.empty() && host.usable_gpus == 0) {
    warn("the driver has ", host.gpus.size(),
         " GPU(s), this build or process uses none: build "
         "with CUDA (TESSERA_WITH_CUDA), and look at CUDA_VISIBLE_DEVICES");
  }
  for (size_t i = 0; i < host.gpus.size(); ++i) {
    const GpuFacts& gpu = host.gpus[i];
    for (size_t j = i + 1; j < gpu.paths.size(); ++j) {
      if (gpu.paths[j] == "NVLink" || gpu.paths[j].empty()) continue;
      warn("GPUs ", i, " and ", j, " have no NVLink (they share: ", gpu.paths[j],
           "): prefer zero1 or a pipeline between them; tensor parallelism and zero3 send most");
    }
    if (gpu.used_bytes > 2 * kGiB && host.launch.world_size == 1) {
      warn("GPU ", i, ": ", gpu.used_bytes >> 20, " MiB are in use by others");
    }
    if (!gpu.sm_mhz || !gpu.most_mhz) {
      warn("GPU ", i, ": its clocks cannot be read, so a throttled one is not noticed");
    }
  }
  if (host.usable_gpus > 0 && host.locked_limit_bytes && *host.locked_limit_bytes < kGiB) {
    warn("only ", *host.locked_limit_bytes >> 10,
         " KiB may be locked in memory (ulimit -l): some "
         "systems refuse pinned memory then, which offload and saves use");
  }
  if (host.shm_bytes < kGiB) {
    warn("/dev/shm has ", host.shm_bytes >> 20,
         " MiB: NCCL and Open MPI move data between ranks "
         "there; in a container raise --shm-size");
  }
  if (host.open_files_limit && *host.open_files_limit < 4096) {
    warn("only ", *host.open_files_limit,
         " files may be open (ulimit -n); many ranks over TCP need "
         "more");
  }
  if (host.available_bytes < host.memory_bytes / 10) {
    warn("of ", host.memory_bytes >> 20, " MiB of host memory ", host.available_bytes >> 20,
         " MiB are free for this process");
  }
  const bool several = host.launch.world_size > 1 || host.usable_gpus > 1;
  for (const TransportInfo& transport : host.transports) {
    if (transport.name == "nccl" && several && host.usable_gpus > 0 &&
        !transport.unusable_because.empty()) {
      warn("NCCL cannot be used: ", transport.unusable_because);
    }
  }
  const auto omp = host.variables.find("OMP_NUM_THREADS");
  if (omp != host.variables.end() && omp->second == "1" && ranks == 1 && host.cores > 1 &&
      host.usable_gpus == 0) {
    warn("OMP_NUM_THREADS=1: a single rank on the CPU computes with one of ", host.cores, " cores");
  }
  if (host.variables.contains("CUDA_LAUNCH_BLOCKING")) {
    warn("CUDA_LAUNCH_BLOCKING is set: nothing overlaps");
  }
  return all;
}

}  // namespace tessera::programs
