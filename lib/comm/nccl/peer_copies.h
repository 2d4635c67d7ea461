// SPDX-License-Identifier: MIT
#pragma once
// All-gathers among the GPUs of one host by their copy engines, which leave the multiprocessors to
// other work.
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/comm/control/abort_signal.h"
#include "lib/comm/nccl/shared_counters.h"

namespace tessera::nccl {

// [Note: gathers by copies]
// Each rank has a staging buffer of two slots that its peers map (CUDA IPC). It copies a piece of
// its part into a slot and raises its counter `ready`. Peers' streams wait for that counter, copy
// the piece out of the slot, and raise their counters `read`. A slot is written again when all
// peers have read it. Streams do all of this: no kernel runs, and no host waits.
class PeerCopies {
 public:
  // All ranks' texts, by rank; their lengths are equal. A collective that blocks the host.
  using Exchange = std::function<std::vector<std::string>(const std::string&)>;

  // Collective. nullptr on all ranks when they are on several hosts or a GPU cannot map another's
  // memory.
  static std::shared_ptr<PeerCopies> connect(const Exchange& exchange, int rank, int size,
                                             c10::cuda::CUDAStream stream);
  ~PeerCopies();
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;

  // One all-gather: every rank's `bytes` at `input`, end to end at `output`. input may be this
  // rank's part of output.
  struct Gather {
    char* output;
    const char* input;
    size_t bytes;
  };
  // Enqueues gathers of the same sizes on all ranks on stream(). Throws Error(kUnavailable) when
  // the driver refuses.
  void all_gather(std::span<const Gather> gathers);
  c10::cuda::CUDAStream stream() const { return stream_; }
  // A gather within the staging buffer, whose data nobody needs, to measure one.
  Gather probe() const;

  // Lets what waits on the stream run on, with undefined data. Any thread; called again and again
  // after an abort, since a peer may still write its counters.
  void release();
  // Collective, and last: waits until no peer reads this rank's memory, and frees all. After an
  // abort, or when peers do not come in this time, the memory stays until the process ends.
  void close(const AbortSignal& signal, std::chrono::seconds timeout);
  bool closed() const { return closed_; }

 private:
  PeerCopies(int rank, int size, c10::cuda::CUDAStream stream);

  // A part of a gather, and its place in a slot.
  struct Run {
    const Gather* gather;
    size_t offset, bytes, place;
  };
  void transfer(const std::vector<Run>& runs);
  void wait_for(const uint32_t& counter, uint32_t least);
  void raise(uint32_t& counter, uint32_t value);
  void copy(void* to, const void* from, size_t bytes);

  bool leave_peers(const AbortSignal& signal, std::chrono::seconds timeout);

  const int rank_, size_;
  const c10::cuda::CUDAStream stream_;
  const std::vector<int> peers_;  // in the order of reading
  std::unique_ptr<SharedCounters> counters_;
  char* staging_ = nullptr;
  std::vector<char*> mapped_;        // peers' staging buffers, by rank
  std::atomic<uint32_t> pieces_{0};  // number of the last piece
  std::atomic<bool> closed_{false};
};

}  // namespace tessera::nccl
