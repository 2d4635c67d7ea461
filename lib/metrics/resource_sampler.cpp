// SPDX-License-Identifier: MIT
#include "lib/metrics/resource_sampler.h"

#include <unistd.h>

#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <thread>

#include "tessera/core/error.h"

namespace tessera::metrics {
namespace {

// Busy share of all cores between two calls, from the first line of /proc/stat.
class CpuUtilisation {
 public:
  std::optional<double> sample() {
    std::ifstream in("/proc/stat");
    std::string label;
    in >> label;
    double total = 0, idle = 0, value = 0;
    for (int column = 0; column < 8 && in >> value; ++column) {
      total += value;
      if (column == 3 || column == 4) idle += value;  // idle, iowait
    }
    const double elapsed = total - total_, idled = idle - idle_;
    const bool known = total_ > 0 && elapsed > 0;
    total_ = total;
    idle_ = idle;
    return known ? std::optional(1 - idled / elapsed) : std::nullopt;
  }

 private:
  double total_ = 0, idle_ = 0;
};

}  // namespace

struct ResourceSampler::Impl {
  explicit Impl(ResourceSamplerOptions options_of)
      : options(std::move(options_of)), gpus(options.gpus) {}

  ResourceSamplerOptions options;
  std::function<void(const ResourceRecord&)> sink;
  GpuMonitor gpus;
  CpuUtilisation cpu;
  std::mutex mutex;
  std::condition_variable stopping;
  bool stop = false;
  std::thread thread;
  std::exception_ptr failure;

  void sample() {
    const ProcessTreeMemory tree =
        process_tree_memory(options.tree_root ? options.tree_root : getpid());
    ResourceRecord record;
    record.cpu_rss_tree_bytes = tree.rss_bytes;
    record.cpu_pss_tree_bytes = tree.pss_bytes;
    record.cpu_util_ratio = cpu.sample();
    if (options.pinned_bytes) record.pinned_bytes = options.pinned_bytes();
    if (gpus.gpus().empty()) sink(record);
    for (size_t i = 0; i < gpus.gpus().size(); ++i) {
      const GpuMonitor::Reading reading = gpus.read(i);
      record.gpu = gpus.gpus()[i].index;
      record.gpu_mem_used_bytes = reading.memory_used_bytes;
      record.gpu_util_ratio = reading.utilisation_ratio;
      record.gpu_power_w = reading.power_w;
      sink(record);
    }
  }

  void run() {
    try {
      std::unique_lock lock(mutex);
      do {
        lock.unlock();
        sample();
        lock.lock();
      } while (!stopping.wait_for(lock, options.interval, [this] { return stop; }));
      lock.unlock();
      sample();
    } catch (const Error&) {
      failure = std::current_exception();
    } catch (const std::exception&) {
      // Unavailable measurements are omitted.
    }
  }
};

ResourceSampler::ResourceSampler(ResourceSamplerOptions options,
                                 std::function<void(const ResourceRecord&)> sink)
    : impl_(std::make_unique<Impl>(std::move(options))) {
  impl_->sink = std::move(sink);
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

ResourceSampler::~ResourceSampler() { stop(); }

std::exception_ptr ResourceSampler::stop() {
  if (!impl_->thread.joinable()) return impl_->failure;
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->stopping.notify_all();
  impl_->thread.join();
  return impl_->failure;
}

}  // namespace tessera::metrics
