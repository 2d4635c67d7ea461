// SPDX-License-Identifier: MIT
#include "lib/tools/env/bandwidth.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "lib/core/clock.h"
#include "lib/core/host_memory.h"
#include "lib/core/host_threads.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

constexpr int64_t kMost = int64_t{256} << 20;  // of one buffer

// The best rate within the time, after one warm-up call. fn returns when its work is done.
double best_rate(double bytes, double seconds, const std::function<void()>& fn) {
  fn();
  double best = 0;
  for (const double end = now_s() + seconds; best == 0 || now_s() < end;) {
    const double begin = now_s();
    fn();
    best = std::max(best, bytes / (now_s() - begin));
  }
  return best;
}

Bandwidth host_triad(int64_t numel, double seconds) {
  const std::vector<int> cores = allowed_cores();
  HostThreads threads(static_cast<int>(cores.size()), cores);
  const at::Tensor a = host_zeros(numel, at::kFloat, false, threads),
                   b = host_zeros(numel, at::kFloat, false, threads),
                   c = host_zeros(numel, at::kFloat, false, threads);
  auto* to = a.data_ptr<float>();
  const auto *x = b.const_data_ptr<float>(), *y = c.const_data_ptr<float>();
  const int64_t parts = threads.size();
  const double rate = best_rate(3.0 * static_cast<double>(numel) * sizeof(float), seconds, [&] {
    threads.run(parts, [&](int64_t part) {
      const int64_t end = numel * (part + 1) / parts;
      for (int64_t i = numel * part / parts; i < end; ++i) to[i] = x[i] + 3.0F * y[i];
    });
  });
  return {concat("host memory, triad on ", cores.size(), " core(s)"), rate};
}

void add_device(int gpu, int64_t bytes, double seconds, std::vector<Bandwidth>& all) {
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(gpu));
  const auto options = at::dtype(at::kByte).device(device);
  const at::Tensor here = at::empty({bytes}, options), other = at::empty({bytes}, options);
  const at::Tensor host = at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(true));
  const auto add = [&](const std::string& what, double moved, const at::Tensor& to,
                       const at::Tensor& from) {
    all.push_back({what, best_rate(moved, seconds, [&] {
                     to.copy_(from, /*non_blocking=*/true);
                     synchronize_device(device);
                   })});
  };
  const auto size = static_cast<double>(bytes);
  add(concat("GPU ", gpu, ", its memory (read and write)"), 2 * size, other, here);
  add(concat("host to GPU ", gpu, ", pinned"), size, here, host);
  add(concat("GPU ", gpu, " to host, pinned"), size, host, here);
  for (int next = 0; next < gpu_count(); ++next) {
    if (next == gpu) continue;
    const at::Tensor there = at::empty(
        {bytes}, options.device(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(next))));
    add(concat("GPU ", gpu, " to GPU ", next), size, there, here);
  }
}

// The message tells why a directory is not writable.
Bandwidth file_rate(const std::string& directory, int64_t bytes) {
  const std::string path = concat(directory, "/tessera-env-", getpid());
  const std::string block(size_t{16} << 20, 'x');
  const double begin = now_s();
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  bool well = file >= 0;
  for (int64_t done = 0; well && done < bytes; done += static_cast<int64_t>(block.size())) {
    well = ::write(file, block.data(), block.size()) == static_cast<ssize_t>(block.size());
  }
  well = well && ::fsync(file) == 0;
  const std::string why = well ? "" : std::strerror(errno);
  const double rate = static_cast<double>(bytes) / (now_s() - begin);
  if (file >= 0) ::close(file);
  ::unlink(path.c_str());
  check(well, ErrorCode::kDataLoss, directory, ": cannot be written: ", why);
  return {concat("file in ", directory, ", written and made durable"), rate};
}

}  // namespace

std::vector<Bandwidth> measure_bandwidths(const std::string& directory, double seconds) {
  std::vector<Bandwidth> all;
  const int64_t bytes = std::min(kMost, available_host_memory() / 16);
  all.push_back(host_triad(bytes / static_cast<int64_t>(sizeof(float)), seconds));
  for (int gpu = 0; gpu < gpu_count(); ++gpu) add_device(gpu, bytes, seconds / 2, all);
  if (!directory.empty()) all.push_back(file_rate(directory, bytes));
  return all;
}

}  // namespace tessera::programs
