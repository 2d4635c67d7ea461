// SPDX-License-Identifier: MIT
#include "lib/comm/nccl/shared_counters.h"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <random>
#include <utility>

#include "tessera/core/error.h"

namespace tessera::nccl {
namespace {

size_t segment_bytes(int ranks) {
  return static_cast<size_t>(ranks) * sizeof(SharedCounters::Rank);
}

std::string new_name() {
  std::random_device random;
  return concat("/tessera-", getpid(), "-", random());
}

}  // namespace

SharedCounters::SharedCounters(std::string name, int file, size_t bytes)
    : name_(std::move(name)), bytes_(bytes) {
  void* const mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (mapped == MAP_FAILED) return;
  void* on_device = nullptr;
  if (cudaHostRegister(mapped, bytes_, cudaHostRegisterMapped) != cudaSuccess ||
      cudaHostGetDevicePointer(&on_device, mapped, 0) != cudaSuccess) {
    cudaGetLastError();
    munmap(mapped, bytes_);
    return;
  }
  host_ = static_cast<Rank*>(mapped);
  device_ = reinterpret_cast<uint64_t>(on_device);
}

SharedCounters::~SharedCounters() {
  forget_name();
  if (host_ == nullptr || kept_) return;
  cudaHostUnregister(host_);
  munmap(host_, bytes_);
}

std::unique_ptr<SharedCounters> SharedCounters::create(int ranks) {
  std::string name = new_name();
  const int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (file < 0) return nullptr;
  const size_t bytes = segment_bytes(ranks);
  if (ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    shm_unlink(name.c_str());
    ::close(file);
    return nullptr;
  }
  auto made = std::unique_ptr<SharedCounters>(new SharedCounters(std::move(name), file, bytes));
  made->named_ = true;
  return made->host_ == nullptr ? nullptr : std::move(made);
}

std::unique_ptr<SharedCounters> SharedCounters::open(const std::string& name, int ranks) {
  const int file = shm_open(name.c_str(), O_RDWR, 0600);
  if (file < 0) return nullptr;
  auto opened =
      std::unique_ptr<SharedCounters>(new SharedCounters(name, file, segment_bytes(ranks)));
  return opened->host_ == nullptr ? nullptr : std::move(opened);
}

void SharedCounters::forget_name() {
  if (std::exchange(named_, false)) shm_unlink(name_.c_str());
}

uint64_t SharedCounters::on_device(const uint32_t& counter) const {
  return device_ + static_cast<uint64_t>(reinterpret_cast<const char*>(&counter) -
                                         reinterpret_cast<const char*>(host_));
}

}  // namespace tessera::nccl
