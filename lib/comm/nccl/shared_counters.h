// SPDX-License-Identifier: MIT
#pragma once
// Counters in host memory that the ranks of one host share: GPUs write them and wait for them.
#include <cstdint>
#include <memory>
#include <string>

namespace tessera::nccl {

// One page-locked segment of POSIX shared memory. A host store releases a GPU that waits for a
// counter, without a call of the driver.
class SharedCounters {
 public:
  struct Rank {
    alignas(64) uint32_t ready;   // number of its last piece that peers may read
    alignas(64) uint32_t read;    // number of the last piece that it has read from all peers
    alignas(64) uint32_t closed;  // 1: it holds no peer's memory any more
  };

  // A new segment of zeros under a name of its own; nullptr when the system refuses.
  static std::unique_ptr<SharedCounters> create(int ranks);
  // The segment that another rank created; nullptr when this process cannot reach it.
  static std::unique_ptr<SharedCounters> open(const std::string& name, int ranks);
  ~SharedCounters();
  SharedCounters(const SharedCounters&) = delete;
  SharedCounters& operator=(const SharedCounters&) = delete;

  const std::string& name() const { return name_; }
  void forget_name();  // the segment then lives as long as its mappings
  // Keeps the mapping for the life of the process, since a GPU may still wait for a counter.
  void keep_for_ever() { kept_ = true; }

  Rank& rank(int r) { return host_[r]; }
  // Address of a counter for this process's GPU.
  uint64_t on_device(const uint32_t& counter) const;

 private:
  SharedCounters(std::string name, int file, size_t bytes);

  std::string name_;
  size_t bytes_ = 0;
  Rank* host_ = nullptr;
  uint64_t device_ = 0;
  bool named_ = false, kept_ = false;
};

}  // namespace tessera::nccl
