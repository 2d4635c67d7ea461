// SPDX-License-Identifier: MIT
#pragma once
// Which of several algorithms is fastest for a kind of product.
//
// [Note: measuring in passing] The first calls of a kind take several algorithms in turn, between
// two events each; when the device has come to the last of them, the fastest is kept. No product is
// computed more than once, and the host never waits. Where the host is not ahead of the device, a
// short sleep before each lets it get there, so that the time between the events is the product's;
// there a trial makes its step longer, so that sizes of a known kind try in some calls only, unless
// what runs is about to be recorded (TrialsAtOnce).
// The library's suggestions are tried by the first calls of a kind together, whatever their numbers
// of tokens, so that steps of ever new sizes soon have tried them all; then each size tries the
// best of these only, whose kernels are loaded.
// A number of tokens unlike all that a run has met, as the last step of an epoch has it, is not
// worth trials, each of which loads a kernel: until it comes again it takes what is good for
// others.
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "lib/ops/plan_cache.h"
#include "lib/ops/trials.h"

namespace tessera::ops::cuda {

using Algorithms = std::vector<PlanCache::Plan>;

class GemmSearch {
 public:
  // tokens: of the call that begins it.
  GemmSearch(Algorithms candidates, bool suggested, int64_t tokens);

  // Lets issue(algorithm), which returns whether it did, compute a product of this many tokens with
  // the next candidate that can; false when all trials have been issued or none is due.
  template <typename Issue>
  bool try_next(int64_t tokens, c10::cuda::CUDAStream stream, const Issue& issue) {
    const bool host_is_ahead = !took_.empty() && !took_.back().end.query();
    if (!host_is_ahead && !suggested_ && !TrialsAtOnce::asked_for() &&
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
  // Whether the device has come to the last trial.
  bool ended() const;
  // By the least time a token; those that could not be issued last.
  Algorithms fastest_first() const;
  bool of_one_size() const;

  bool suggested() const { return suggested_; }
  int64_t tokens() const { return tokens_; }

 private:
  static constexpr int64_t kSleepCycles = 50'000;  // some 25 microseconds
  static constexpr int64_t kCallsATrial = 12;      // a step of a model of 24 layers has two
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
  int64_t calls_ = 0;  // while the host was not ahead
  std::vector<Trial> took_;
};

// What is known about products on one device.
class GemmSearches {
 public:
  explicit GemmSearches(PlanCache& fastest) : fastest_(fastest) {}

  // What is best for this kind and size, or was good for about as many tokens: a single one is to
  // be taken, several to be tried.
  Algorithms known(const PlanCache::Kind& kind, int64_t tokens) const;
  // Of a size for which nothing is known: what is good for the sizes nearest to it, where this
  // process has met the kind before but no other product of about as many tokens. Else none.
  Algorithms instead(const PlanCache::Kind& kind, int64_t tokens);
  // For the first product of a kind in this process: what earlier runs found best for a quarter to
  // four times as many tokens, each once. Later steps have such products, and loading a kernel
  // takes longer than they.
  Algorithms to_load(const PlanCache::Kind& kind, int64_t tokens);
  // One that is under way for the size, or among the library's suggestions for about as many
  // tokens; null: there is none.
  std::shared_ptr<GemmSearch> running(const PlanCache::Kind& kind, int64_t tokens,
                                      bool suggested) const;
  std::shared_ptr<GemmSearch> begin(const PlanCache::Kind& kind, Algorithms candidates,
                                    bool suggested, int64_t tokens);
  // Of a search that has ended; more than once changes nothing.
  void conclude(const PlanCache::Kind& kind, const std::shared_ptr<GemmSearch>& search);

 private:
  PlanCache& fastest_;
  std::set<PlanCache::Kind> loaded_;
  std::map<PlanCache::Kind, std::set<int64_t>> put_off_;
  // By rounded sizes.
  std::map<PlanCache::Kind, std::map<int64_t, Algorithms>> good_;
  std::map<PlanCache::Kind, std::map<int64_t, std::shared_ptr<GemmSearch>>> running_;
};

}  // namespace tessera::ops::cuda
