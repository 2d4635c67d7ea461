// SPDX-License-Identifier: MIT
#include "lib/sharding/matrix_owners.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace tessera {
namespace {

int64_t aligned_numel(const FlatEntry& entry) {
  const int64_t unit = FlatLayout::kAlignment;
  return (entry.range.numel + unit - 1) / unit * unit;
}

std::vector<MatrixPiece> pieces_of(const FlatLayout& layout, const FlatEntry& entry) {
  std::vector<MatrixPiece> pieces;
  for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
    for (int shard = 0; shard < layout.shards(); ++shard) {
      const FlatRange part = overlap(layout.owned(segment, shard), entry.range);
      if (part.numel == 0) continue;
      pieces.push_back({segment, shard, part, part.offset - entry.range.offset});
    }
  }
  return pieces;
}

// Matrices on the same ranks.
struct MatrixGroup {
  Communicator* cut = nullptr;
  int shards = 1;
  std::vector<OwnedMatrix> matrices;
  std::vector<double> costs;  // by matrix

  int slices() const { return cut == nullptr ? 1 : cut->size(); }
};

std::vector<MatrixGroup> kin_of(const std::vector<MatrixUnit>& units, const MatrixNeeds& needs) {
  std::vector<MatrixGroup> all;
  std::map<std::pair<size_t, Communicator*>, size_t> known;
  for (size_t u = 0; u < units.size(); ++u) {
    if (!units[u].matrices) continue;
    const FlatLayout& layout = *units[u].layout;
    for (size_t e = 0; e < layout.entries().size(); ++e) {
      const FlatEntry& entry = layout.entries()[e];
      const size_t alone = units[u].apart ? u + 1 : 0;
      const auto [at, added] = known.try_emplace({alone, entry.placement.cut}, all.size());
      if (added) all.push_back({.cut = entry.placement.cut, .shards = layout.shards()});
      MatrixGroup& kin = all[at->second];
      kin.matrices.push_back({.unit = u, .entry = e, .pieces = pieces_of(layout, entry)});
      kin.costs.push_back(needs.cost(whole_shape(entry)));
    }
  }
  return all;
}

// Chooses owners, and sorts the matrices by assignment.
void choose_owners(int groups, MatrixGroup& kin) {
  const int slices = kin.slices();
  std::vector<double> loads(static_cast<size_t>(groups * kin.shards * slices));
  std::vector<size_t> order(kin.matrices.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return kin.costs[a] > kin.costs[b]; });
  std::vector<OwnedMatrix> given;
  for (const size_t i : order) {
    const auto least = std::ranges::min_element(loads);
    *least += kin.costs[i];
    const auto owner = static_cast<int>(least - loads.begin());
    OwnedMatrix& matrix = given.emplace_back(std::move(kin.matrices[i]));
    matrix.slice = owner % slices;
    matrix.shard = owner / slices % kin.shards;
    matrix.group = owner / slices / kin.shards;
  }
  kin.matrices = std::move(given);
}

void add_traffic(const OwnedMatrix& matrix, int groups, const MatrixGroup& kin,
                 std::vector<MatrixTraffic>& sent) {
  const int first = matrix.group * kin.shards;
  MatrixTraffic& owner = sent[static_cast<size_t>(first + matrix.shard)];
  for (const MatrixPiece& piece : matrix.pieces) {
    const int64_t numel = piece.range.numel;
    owner.slices += static_cast<double>(numel) * (kin.slices() - 1) / kin.slices();
    for (int group = 0; groups > 1 && group < groups; ++group) {
      sent[static_cast<size_t>(group * kin.shards + piece.shard)].told += numel;
    }
    if (piece.shard == matrix.shard) continue;
    sent[static_cast<size_t>(first + piece.shard)].gathered += numel;
    owner.scattered += numel;
  }
}

class Rounds {
 public:
  Rounds(const std::vector<MatrixUnit>& units, int64_t round_numel, MatrixOwners& owners)
      : units_(units), round_numel_(round_numel), owners_(owners) {}

  void add(MatrixGroup& kin) {
    open(kin.cut);
    for (OwnedMatrix& matrix : kin.matrices) {
      const FlatEntry& entry = units_[matrix.unit].layout->entries()[matrix.entry];
      const int64_t numel = aligned_numel(entry);
      const std::pair data_rank(matrix.group, matrix.shard);
      const auto found = filled_.find(data_rank);
      if (found != filled_.end() && found->second + numel > round_numel_) open(kin.cut);
      int64_t& filled = filled_[data_rank];
      matrix.place = filled;
      filled += numel;
      owners_.room.gathered = std::max(owners_.room.gathered, filled);
      if (kin.cut != nullptr) {
        int64_t& slices = slices_filled_[{matrix.group, matrix.shard, matrix.slice}];
        matrix.slices_place = slices;
        slices += kin.slices() * numel;
        owners_.room.slices = std::max(owners_.room.slices, slices);
      }
      owners_.room.whole = std::max(owners_.room.whole, c10::multiply_integers(whole_shape(entry)));
      owners_.rounds.back().matrices.push_back(std::move(matrix));
    }
  }

 private:
  void open(Communicator* cut) {
    owners_.rounds.push_back({.cut = cut});
    filled_.clear();
    slices_filled_.clear();
  }

  const std::vector<MatrixUnit>& units_;
  const int64_t round_numel_;
  MatrixOwners& owners_;
  std::map<std::pair<int, int>, int64_t> filled_;  // elements in the last round, by data rank
  std::map<std::tuple<int, int, int>, int64_t> slices_filled_;  // by owner
};

}  // namespace

std::vector<int64_t> whole_shape(const FlatEntry& entry) {
  std::vector<int64_t> shape = entry.shape;
  const TensorShard& shard = entry.placement.shard;
  if (!shard.replicated()) shape[static_cast<size_t>(shard.dim)] = shard.full_size;
  return shape;
}

MatrixOwners matrix_owners(const std::vector<MatrixUnit>& units, int groups, int64_t round_numel,
                           const MatrixNeeds& needs) {
  MatrixOwners owners;
  const int shards = units.empty() ? 1 : units.front().layout->shards();
  owners.sent.resize(static_cast<size_t>(groups * shards));
  Rounds rounds(units, round_numel, owners);
  // Slices by communicator; all ranks of an unsliced matrix hold it equally.
  std::map<std::tuple<int, int, Communicator*, int>, std::pair<int64_t, double>> held;
  for (MatrixGroup& kin : kin_of(units, needs)) {
    choose_owners(groups, kin);
    for (const OwnedMatrix& matrix : kin.matrices) {
      const auto shape = whole_shape(units[matrix.unit].layout->entries()[matrix.entry]);
      auto& [state, cost] = held[{matrix.group, matrix.shard, kin.cut, matrix.slice}];
      state += needs.state_numel(shape);
      owners.room.all_state += static_cast<double>(needs.state_numel(shape)) / kin.slices();
      cost += needs.cost(shape);
      add_traffic(matrix, groups, kin, owners.sent);
    }
    rounds.add(kin);
  }
  std::map<std::tuple<int, int>, std::map<Communicator*, std::pair<int64_t, double>>> by_rank;
  for (const auto& [owner, has] : held) {
    const auto& [group, shard, cut, slice] = owner;
    auto& most = by_rank[{group, shard}][cut];
    most = {std::max(most.first, has.first), std::max(most.second, has.second)};
  }
  for (const auto& [rank, by_cut] : by_rank) {
    int64_t state = 0;
    double cost = 0;
    for (const auto& [cut, most] : by_cut) {
      state += most.first;
      cost += most.second;
    }
    owners.room.state = std::max(owners.room.state, state);
    owners.room.cost = std::max(owners.room.cost, cost);
  }
  return owners;
}

}  // namespace tessera
