// SPDX-License-Identifier: MIT
#pragma once
// Autotuning: which of several algorithms is fastest for a kind of product.
//
// [Note: measuring in passing]
// The first calls of a kind each use another algorithm, between two events. When the device has
// reached the last event, the fastest algorithm is kept. No product is computed twice, and the host
// never waits. Where the host is not ahead of the device, a short device sleep before a trial puts
// it ahead, so that the events measure the product alone. Such trials lengthen their step. So known
// kinds then try in some calls only, unless a recording is imminent (TuneEagerly).
// All calls of a kind share the trials of the library's suggestions, whatever their number of
// tokens. So steps with ever new sizes finish them soon. Each size then tries only the best of
// these, whose kernels are loaded.
// A number of tokens unlike any before, such as an epoch's last step, is not worth trials, each of
// which loads a kernel. Until it recurs it uses other sizes' best algorithm.
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "lib/ops/algorithm_cache.h"
#include "lib/ops/gemm_autotune.h"

namespace tessera::ops::cuda {

using Algorithms = std::vector<AlgorithmCache::Algorithm>;

class GemmSearch {
 public:
  // tokens: number of tokens of the first call.
  GemmSearch(Algorithms candidates, bool suggested, int64_t tokens);

  // Calls issue(algorithm) with the next candidate until one returns true, for a product of this
  // many tokens. False when all trials are issued or none is due.
  template <typename Issue>
  bool try_next(int64_t tokens, c10::cuda::CUDAStream stream, const Issue& issue) {
    const bool host_is_ahead = !took_.empty() && !took_.back().end.query();
    if (!host_is_ahead && !suggested_ && !TuneEagerly::asked_for() &&
        calls_++ % kCallsATrial != 0) {
      return false;
    }
    while (issued_ < trials_) {
      Trial trial{issued_++ % candidates_.size(), tokens};
      if (!host_is_ahead) at::cuda::sleep(kSleepCycles);
      trial.begin.record(stream);
      if (!issue(candidates_[trial.candidate])) continue;
      trial.end.record(stream);
      took_.push_back(std::move(trial));
      return true;
    }
    return false;
  }
  // True when the device has finished the last trial.
  bool ended() const;
  // Sorted by least time per token; algorithms that could not run come last.
  Algorithms fastest_first() const;
  bool of_one_size() const;

  bool suggested() const { return suggested_; }
  int64_t tokens() const { return tokens_; }

 private:
  static constexpr int64_t kSleepCycles = 50'000;  // about 25 microseconds
  static constexpr int64_t kCallsATrial = 12;      // a step of a 24-layer model has two trials
  struct Trial {
    size_t candidate;
    int64_t tokens;
    at::cuda::CUDAEvent begin{cudaEventDefault}, end{cudaEventDefault};
  };

  const Algorithms candidates_;
  const bool suggested_;
  const int64_t tokens_;
  const size_t trials_;
  size_t issued_ = 0;
  int64_t calls_ = 0;  // calls while the host was not ahead
  std::vector<Trial> took_;
};

// Known algorithms of one device's products.
class GemmSearches {
 public:
  explicit GemmSearches(AlgorithmCache& fastest) : fastest_(fastest) {}

  // Best algorithms for this kind and size, or for a similar number of tokens. A single one is
  // final; several are candidates for trials.
  Algorithms known(const AlgorithmCache::Kind& kind, int64_t tokens) const;
  // Algorithms of the nearest sizes, for an unfamiliar size: the process knows the kind but no
  // similar number of tokens. Else empty.
  Algorithms instead(const AlgorithmCache::Kind& kind, int64_t tokens);
  // Algorithms to load at a kind's first product in this process: those that earlier runs found
  // best for 1/4 to 4 times as many tokens. Later steps have such sizes, and loading a kernel takes
  // longer than a step.
  Algorithms to_load(const AlgorithmCache::Kind& kind, int64_t tokens);
  // The running search for this size, or among the library's suggestions for a similar number of
  // tokens; null: none.
  std::shared_ptr<GemmSearch> running(const AlgorithmCache::Kind& kind, int64_t tokens,
                                      bool suggested) const;
  std::shared_ptr<GemmSearch> begin(const AlgorithmCache::Kind& kind, Algorithms candidates,
                                    bool suggested, int64_t tokens);
  // Stores the result of a finished search; repeated calls change nothing.
  void conclude(const AlgorithmCache::Kind& kind, const std::shared_ptr<GemmSearch>& search);

 private:
  AlgorithmCache& fastest_;
  std::set<AlgorithmCache::Kind> loaded_;
  std::map<AlgorithmCache::Kind, std::set<int64_t>> put_off_;
  // By rounded size.
  std::map<AlgorithmCache::Kind, std::map<int64_t, Algorithms>> good_;
  std::map<AlgorithmCache::Kind, std::map<int64_t, std::shared_ptr<GemmSearch>>> running_;
};

}  // namespace tessera::ops::cuda
