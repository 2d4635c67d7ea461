// SPDX-License-Identifier: MIT
#pragma once
// What every rank of a mesh calls, from runs of those that may differ.
#include <functional>
#include <memory>
#include <vector>

#include "lib/plan/followed_run.h"

namespace tessera {

// [Note: which ranks run]
// Ranks of one stage do the same, each with its own places in the communicators, unless they own
// different things. So of each stage the first rank runs, and ranks that would show a difference:
// on the data axis the middle and the last one (late sums over holders follow from what a shard
// holds), on the tensor axis the last one. Where one of them differs, all ranks along that axis
// run. Owners of whole matrices all differ: every rank runs. The communicators of a rank that did
// not run follow from the splits of one that did, which say what each rank gives.
class RankSequences {
 public:
  using Run = std::function<RankRun(const MeshCoordinate&)>;
  RankSequences(const MeshExtents& mesh, bool every_rank, const Run& run);

  const std::vector<RankOperations>& ranks() const { return ranks_; }
  const RankRun& run_of(int rank) const { return *run_of_[static_cast<size_t>(rank)]; }
  bool ran(int rank) const { return ran_[static_cast<size_t>(rank)]; }
  int runs() const { return static_cast<int>(runs_.size()); }

 private:
  const RankRun& run(const MeshCoordinate& at);
  void run_stage(int stage, bool every_rank);

  const MeshExtents mesh_;
  const Run& make_;
  std::vector<std::unique_ptr<const RankRun>> runs_;
  std::vector<const RankRun*> run_of_;
  std::vector<bool> ran_;
  std::vector<RankOperations> ranks_;
};

// The communicators of a rank, as those of one that does the same.
std::vector<LedgerCommunicator> communicators_of(int rank,
                                                 const std::vector<LedgerCommunicator>& same);

}  // namespace tessera
