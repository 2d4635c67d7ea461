// SPDX-License-Identifier: MIT
#include "lib/comm/nccl/peer_copies.h"

#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "lib/core/host_name.h"
#include "tessera/core/error.h"

namespace tessera::nccl {
namespace {

constexpr size_t kSlots = 2, kSlotBytes = size_t{32} << 20, kAlignment = 256;
constexpr uint32_t kFarAhead = uint32_t{1} << 30;  // comparisons of counters are cyclic
constexpr size_t kProbeBytes = size_t{4} << 20;

// Functions of the driver, without a link against it.
struct Driver {
  decltype(&cuStreamWaitValue32) wait = nullptr;
  decltype(&cuStreamWriteValue32) write = nullptr;
  bool complete() const { return wait != nullptr && write != nullptr; }
};

void* driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
#if CUDART_VERSION >= 12050
  const auto result =
      cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &status);
#else
  const auto result = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &status);
#endif
  return result == cudaSuccess && status == cudaDriverEntryPointSuccess ? found : nullptr;
}

const Driver& driver() {
  static const Driver functions{
      reinterpret_cast<decltype(&cuStreamWaitValue32)>(driver_function("cuStreamWaitValue32")),
      reinterpret_cast<decltype(&cuStreamWriteValue32)>(driver_function("cuStreamWriteValue32"))};
  return functions;
}

void require_accepted(bool accepted, const char* what) {
  check(accepted, ErrorCode::kUnavailable, "the driver refused ", what, ": ",
        cudaGetErrorString(cudaGetLastError()));
}

// What a rank tells the others: whether it can, its host, its memory, the counters' name.
struct Offer {
  bool possible = false;
  char host[128] = {}, counters[48] = {};
  cudaIpcMemHandle_t memory{};
};

std::string text_of(const Offer& offer) {
  return {reinterpret_cast<const char*>(&offer), sizeof offer};
}

Offer offer_of(const std::string& text) {
  Offer offer;
  if (text.size() == sizeof offer) std::memcpy(&offer, text.data(), sizeof offer);
  return offer;
}

// All other ranks, beginning with the next one, so that ranks read different peers at a time.
std::vector<int> others_from(int rank, int size) {
  std::vector<int> others;
  for (int step = 1; step < size; ++step) others.push_back((rank + step) % size);
  return others;
}

bool all_say_yes(const PeerCopies::Exchange& exchange, bool own) {
  return std::ranges::all_of(exchange(own ? "y" : "n"),
                             [](const auto& said) { return said == "y"; });
}

}  // namespace

PeerCopies::PeerCopies(int rank, int size, c10::cuda::CUDAStream stream)
    : rank_(rank),
      size_(size),
      stream_(stream),
      peers_(others_from(rank, size)),
      mapped_(static_cast<size_t>(size)) {}

std::shared_ptr<PeerCopies> PeerCopies::connect(const Exchange& exchange, int rank, int size,
                                                c10::cuda::CUDAStream stream) {
  std::shared_ptr<PeerCopies> made(new PeerCopies(rank, size, stream));
  Offer own;
  host_name().copy(own.host, sizeof own.host - 1);
  if (rank == 0) {
    made->counters_ = SharedCounters::create(size);
    if (made->counters_ != nullptr)
      made->counters_->name().copy(own.counters, sizeof own.counters - 1);
  }
  void* staging = nullptr;
  own.possible = driver().complete() && (rank != 0 || made->counters_ != nullptr) &&
                 cudaMalloc(&staging, kSlots * kSlotBytes) == cudaSuccess &&
                 cudaIpcGetMemHandle(&own.memory, staging) == cudaSuccess;
  made->staging_ = static_cast<char*>(staging);
  std::vector<Offer> offers;
  for (const std::string& text : exchange(text_of(own))) offers.push_back(offer_of(text));
  bool works = std::ranges::all_of(offers, [&](const Offer& offer) {
    return offer.possible && std::strcmp(offer.host, own.host) == 0;
  });
  if (works && rank != 0) {
    made->counters_ = SharedCounters::open(offers.front().counters, size);
    works = made->counters_ != nullptr;
  }
  for (const int peer : made->peers_) {
    void* mapped = nullptr;
    works = works && cudaIpcOpenMemHandle(&mapped, offers[static_cast<size_t>(peer)].memory,
                                          cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
    made->mapped_[static_cast<size_t>(peer)] = static_cast<char*>(mapped);
  }
  cudaGetLastError();  // of an attempt that failed
  const bool agreed = all_say_yes(exchange, works);
  if (made->counters_ != nullptr) made->counters_->forget_name();
  if (agreed) return made;
  for (char* const peer : made->mapped_) {
    if (peer != nullptr) cudaIpcCloseMemHandle(peer);
  }
  all_say_yes(exchange, true);  // all have closed: memory may go
  cudaFree(made->staging_);
  made->closed_ = true;
  return nullptr;
}

PeerCopies::~PeerCopies() {
  if (!closed_ && counters_ != nullptr) counters_->keep_for_ever();
}

void PeerCopies::wait_for(const uint32_t& counter, uint32_t least) {
  require_accepted(driver().wait(stream_.stream(), counters_->on_device(counter), least,
                                 CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS,
                   "to wait for a counter");
}

void PeerCopies::raise(uint32_t& counter, uint32_t value) {
  require_accepted(driver().write(stream_.stream(), counters_->on_device(counter), value,
                                  CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS,
                   "to write a counter");
}

void PeerCopies::copy(void* to, const void* from, size_t bytes) {
  require_accepted(
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_.stream()) == cudaSuccess,
      "a copy between GPUs");
}

void PeerCopies::all_gather(std::span<const Gather> gathers) {
  std::vector<Run> runs;
  size_t place = 0;
  for (const Gather& gather : gathers) {
    for (size_t offset = 0; offset < gather.bytes;) {
      if (place == kSlotBytes) {
        transfer(runs);
        runs.clear();
        place = 0;
      }
      const size_t bytes = std::min(gather.bytes - offset, kSlotBytes - place);
      runs.push_back({&gather, offset, bytes, place});
      offset += bytes;
      place = std::min(kSlotBytes, (place + bytes + kAlignment - 1) / kAlignment * kAlignment);
    }
  }
  if (!runs.empty()) transfer(runs);
}

void PeerCopies::transfer(const std::vector<Run>& runs) {
  const uint32_t piece = ++pieces_;
  const size_t slot = piece % kSlots * kSlotBytes;
  for (const int peer : peers_) wait_for(counters_->rank(peer).read, piece - kSlots);
  for (const Run& run : runs)
    copy(staging_ + slot + run.place, run.gather->input + run.offset, run.bytes);
  raise(counters_->rank(rank_).ready, piece);
  const auto output_of = [](const Run& run, int rank) {
    return run.gather->output + static_cast<size_t>(rank) * run.gather->bytes + run.offset;
  };
  for (const Run& run : runs) {
    const char* const input = run.gather->input + run.offset;
    if (output_of(run, rank_) != input) copy(output_of(run, rank_), input, run.bytes);
  }
  for (const int peer : peers_) {
    wait_for(counters_->rank(peer).ready, piece);
    const char* const source = mapped_[static_cast<size_t>(peer)] + slot;
    for (const Run& run : runs) copy(output_of(run, peer), source + run.place, run.bytes);
  }
  raise(counters_->rank(rank_).read, piece);
}

PeerCopies::Gather PeerCopies::probe() const {
  const auto ranks = static_cast<size_t>(size_);
  const size_t bytes = std::min(kProbeBytes, kSlotBytes / (ranks + 2)) / kAlignment * kAlignment;
  char* const output = staging_ + bytes;  // behind what a slot holds of it
  return {.output = output, .input = output + ranks * bytes, .bytes = bytes};
}

void PeerCopies::release() {
  const uint32_t ahead = pieces_ + kFarAhead;
  for (int r = 0; r < size_; ++r) {
    std::atomic_ref(counters_->rank(r).ready).store(ahead);
    std::atomic_ref(counters_->rank(r).read).store(ahead);
  }
}

void PeerCopies::close(const AbortSignal& signal, std::chrono::seconds timeout) {
  if (!leave_peers(signal, timeout)) return release();
  cudaFree(staging_);
  closed_ = true;
}

bool PeerCopies::leave_peers(const AbortSignal& signal, std::chrono::seconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const auto comes = [&](const auto& done) {
    while (!done()) {
      if (signal.raised() || std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::yield();
    }
    return !signal.raised();
  };
  try {
    for (const int peer : peers_) wait_for(counters_->rank(peer).read, pieces_);
  } catch (const Error&) {
    return false;
  }
  if (!comes([&] { return cudaStreamQuery(stream_.stream()) != cudaErrorNotReady; })) return false;
  for (const int peer : peers_) cudaIpcCloseMemHandle(mapped_[static_cast<size_t>(peer)]);
  std::atomic_ref(counters_->rank(rank_).closed).store(1);
  return comes([&] {
    return std::ranges::all_of(peers_, [&](int peer) {
      return std::atomic_ref(counters_->rank(peer).closed).load() == 1;
    });
  });
}

}  // namespace tessera::nccl
