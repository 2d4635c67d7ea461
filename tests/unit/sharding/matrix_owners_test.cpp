// SPDX-License-Identifier: MIT
#include "lib/sharding/matrix_owners.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/support/test.hpp"

using namespace tessera;

namespace {

double cost(c10::IntArrayRef shape) { return static_cast<double>(shape[0] * shape[1]); }
int64_t numel(c10::IntArrayRef shape) { return shape[0] * shape[1]; }

FlatLayout layout_of(const std::vector<std::vector<int64_t>>& shapes, int shards) {
  std::vector<Parameter> parameters;
  for (const auto& shape : shapes) {
    parameters.push_back({std::to_string(parameters.size()), at::empty(shape, at::kMeta), true});
  }
  return {parameters, shards, ShardGranularity::kFlat};
}

}  // namespace

TEST_CASE("every matrix has one owner, and owners have equal shares of the cost") {
  std::vector<std::vector<int64_t>> shapes;
  for (int64_t i = 0; i < 40; ++i) shapes.push_back({8 + 8 * (i % 7), 16 + 16 * (i % 3)});
  for (const auto& [groups, shards] : {std::pair(1, 1), std::pair(1, 3), std::pair(2, 2)}) {
    const FlatLayout layout = layout_of(shapes, shards);
    const MatrixOwners owners =
        matrix_owners({{&layout, true, false}}, groups, 2000, {cost, numel});
    std::vector<double> loads(static_cast<size_t>(groups * shards));
    std::set<size_t> owned;
    double largest = 0;
    int64_t state = 0;
    for (const MatrixRound& round : owners.rounds) {
      std::vector<int64_t> ends(loads.size());
      for (const OwnedMatrix& matrix : round.matrices) {
        CHECK(owned.insert(matrix.entry).second);
        const FlatEntry& entry = layout.entries()[matrix.entry];
        const auto owner = static_cast<size_t>(matrix.group * shards + matrix.shard);
        loads[owner] += cost(entry.shape);
        largest = std::max(largest, cost(entry.shape));
        state += numel(entry.shape);
        CHECK(matrix.place >= ends[owner]);  // after the previous ones
        ends[owner] = matrix.place + entry.range.numel;
        CHECK(ends[owner] <= owners.room.gathered);
        int64_t covered = 0;
        for (const MatrixPiece& piece : matrix.pieces) {
          CHECK(piece.in_matrix == covered);
          covered += piece.range.numel;
        }
        CHECK(covered == entry.range.numel);
      }
    }
    CHECK(owned.size() == shapes.size());
    const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) / double(loads.size());
    CHECK(*std::ranges::max_element(loads) <= mean + largest);
    CHECK(owners.room.cost == *std::ranges::max_element(loads));
    CHECK(owners.room.all_state == static_cast<double>(state));
    CHECK(owners.room.state == static_cast<int64_t>(owners.room.cost));  // cost is state here
  }
}

TEST_CASE("units of elements have no owners") {
  const FlatLayout layout = layout_of({{8, 8}}, 2);
  CHECK(matrix_owners({{&layout, false, false}}, 1, 100, {cost, numel}).rounds.empty());
}
