// SPDX-License-Identifier: MIT
#pragma once
// Operations of every rank of a mesh, from runs of those that may differ.
#include <functional>
#include <memory>
#include <vector>

#include "lib/plan/followed_run.h"

namespace tessera {

// [Note: which ranks run]
// Ranks of one stage call the same operations, with their own ranks in the communicators, unless
// they own different things. So the first rank of each stage runs, and ranks that would show a
// difference. On the data axis these are the middle and the last one, since late sums over replicas
// depend on what a shard holds; on the tensor axis the last one. If one of them differs, all ranks
// along that axis run. Owners of whole matrices all differ, so every rank runs. Other ranks'
// communicators follow from the splits of one that ran, which record every rank's color and key.
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

// A rank's communicators, derived from those of a rank with the same operations.
std::vector<LedgerCommunicator> communicators_of(int rank,
                                                 const std::vector<LedgerCommunicator>& same);

}  // namespace tessera
