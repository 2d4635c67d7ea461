// SPDX-License-Identifier: MIT
#include "lib/ops/cuda/algorithm_store.h"

#include <ATen/cuda/CUDAContext.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <mutex>
#include <utility>

#include "lib/core/file.h"
#include "tessera/core/error.h"

namespace tessera::ops::cuda {
namespace {

struct Stores {
  std::mutex mutex;
  std::map<std::pair<std::string, int>, AlgorithmCache> by_subject_and_device;

  static Stores& instance() {
    static Stores* const stores = new Stores;
    return *stores;
  }
};

std::string file_of(const std::string& subject, const cudaDeviceProp& device, size_t version) {
  const std::string directory = user_cache_directory();
  if (directory == "none") return "";
  std::string name = concat(subject, "-", device.name, "-", version);
  std::ranges::replace_if(
      name, [](unsigned char c) { return !std::isalnum(c); }, '-');
  return concat(directory, "/", name, ".txt");
}

}  // namespace

AlgorithmCache& stored_algorithms(const std::string& subject, size_t library_version) {
  const int index = at::cuda::current_device();
  Stores& stores = Stores::instance();
  const std::lock_guard lock(stores.mutex);
  const auto found = stores.by_subject_and_device.find({subject, index});
  if (found != stores.by_subject_and_device.end()) return found->second;
  const cudaDeviceProp& device = *at::cuda::getDeviceProperties(index);
  return stores.by_subject_and_device
      .try_emplace({subject, index}, file_of(subject, device, library_version),
                   concat(subject, ", ", device.name, ", ", device.multiProcessorCount,
                          " multiprocessors, library version ", library_version))
      .first->second;
}

}  // namespace tessera::ops::cuda
