// SPDX-License-Identifier: MIT
#include "lib/plan/rank_sequences.h"

#include <algorithm>
#include <set>

#include "tessera/core/error.h"

namespace tessera {
namespace {

bool same_call(const LedgerOperation& a, const LedgerOperation& b) {
  return a.kind == b.kind && a.reduce == b.reduce && a.peer == b.peer &&
         a.communicator == b.communicator && a.start == b.start && a.numel == b.numel &&
         a.dtype == b.dtype && a.output_counts == b.output_counts &&
         a.input_counts == b.input_counts && a.name == b.name;
}

bool same_calls(const CommunicationLedger& a, const CommunicationLedger& b) {
  return a.waited == b.waited && a.communicators.size() == b.communicators.size() &&
         std::ranges::equal(a.operations, b.operations, same_call);
}

}  // namespace

std::vector<LedgerCommunicator> communicators_of(int rank,
                                                 const std::vector<LedgerCommunicator>& same) {
  std::vector<LedgerCommunicator> own;
  for (const LedgerCommunicator& each : same) {
    if (each.parent >= 0) {
      own.push_back(
          part_of(own[static_cast<size_t>(each.parent)], each.split, each.arguments, each.parent));
      continue;
    }
    own.push_back(each);
    const auto place = std::ranges::find(each.ranks, rank);
    check(place != each.ranks.end(), ErrorCode::kInternal, "rank ", rank,
          " is not in communicator ", each.name);
    own.back().rank = static_cast<int>(place - each.ranks.begin());
  }
  return own;
}

RankSequences::RankSequences(const MeshExtents& mesh, bool every_rank, const Run& run)
    : mesh_(mesh), make_(run) {
  const auto count = static_cast<size_t>(mesh.ranks());
  run_of_.resize(count);
  ran_.resize(count);
  for (int stage = 0; stage < mesh.pipeline; ++stage) run_stage(stage, every_rank);
  for (int rank = 0; rank < static_cast<int>(count); ++rank) {
    const RankRun& of = run_of(rank);
    ranks_.push_back({&of.ledger, ran(rank) ? of.ledger.communicators
                                            : communicators_of(rank, of.ledger.communicators)});
  }
}

const RankRun& RankSequences::run(const MeshCoordinate& at) {
  const auto rank = static_cast<size_t>(rank_of(at, mesh_));
  if (!ran_[rank]) {
    runs_.push_back(std::make_unique<const RankRun>(make_(at)));
    run_of_[rank] = runs_.back().get();
    ran_[rank] = true;
  }
  return *run_of_[rank];
}

void RankSequences::run_stage(int stage, bool every_rank) {
  const RankRun& first = run({.pipeline = stage});
  const auto differs = [&](int data, int tensor, int context) {
    return !same_calls(run({stage, data, tensor, context}).ledger, first.ledger);
  };
  const bool data_differ =
      every_rank || differs(mesh_.data - 1, 0, 0) || differs(mesh_.data / 2, 0, 0);
  const bool tensor_differ = every_rank || differs(0, mesh_.tensor - 1, 0);
  const bool context_differ = every_rank || differs(0, 0, mesh_.context - 1);
  for (int rank = 0; rank < mesh_.ranks(); ++rank) {
    MeshCoordinate at = coordinate_of(rank, mesh_);
    if (at.pipeline != stage) continue;
    if (!data_differ) at.data = 0;
    if (!tensor_differ) at.tensor = 0;
    if (!context_differ) at.context = 0;
    const RankRun& same = run(at);
    if (!ran_[static_cast<size_t>(rank)]) run_of_[static_cast<size_t>(rank)] = &same;
  }
}

}  // namespace tessera
