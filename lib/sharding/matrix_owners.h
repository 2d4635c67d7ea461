// SPDX-License-Identifier: MIT
#pragma once
// Owners of matrices that are updated as a whole, and the order of their updates.
#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/sharding/flat_layout.h"

namespace tessera {

// A shard's part of a matrix.
struct MatrixPiece {
  size_t segment = 0;
  int shard = 0;
  FlatRange range;        // in the unit's flat buffer
  int64_t in_matrix = 0;  // index of its first element in this rank's slice of the matrix
};

// A matrix and its owner: the one rank of the data and tensor axes that updates it and keeps its
// state.
struct OwnedMatrix {
  size_t unit = 0, entry = 0;
  // The owner: its replica of all shards, its shard in it, and its rank in Placement::cut.
  int group = 0, shard = 0, slice = 0;
  std::vector<MatrixPiece> pieces;  // of all shards
  // Offset among the owner's matrices of the round, in elements of its local slice.
  int64_t place = 0;
  // Likewise for all its slices, on the rank that owns it.
  int64_t slices_place = 0;
};

// Matrices that are gathered, updated and published together.
struct MatrixRound {
  Communicator* cut = nullptr;  // ranks of their slices; null: unsliced
  std::vector<OwnedMatrix> matrices;
};

// Largest number of elements on any rank.
struct MatrixRoom {
  int64_t gathered = 0;  // a round's matrices of one owner: its slices of them
  int64_t slices = 0;    // a round's matrices of one owner: all ranks' slices
  int64_t whole = 0;     // one matrix
  int64_t state = 0;     // optimizer state of all matrices of one owner
  double all_state = 0;  // state of all matrices; for sliced ones the share of a rank with a slice
  double cost = 0;       // updates of one owner
};

// Elements that a data rank sends.
struct MatrixTraffic {
  int64_t gathered = 0;   // pieces of gradients to owners
  int64_t scattered = 0;  // pieces of updates from the owner
  int64_t told = 0;       // updates, broadcast over the ranks with the same shard
  double slices = 0;      // average per rank: to the owner of a sliced matrix, and as many back
};

struct MatrixOwners {
  std::vector<MatrixRound> rounds;
  MatrixRoom room;
  std::vector<MatrixTraffic> sent;  // by data rank
};

struct MatrixUnit {
  const FlatLayout* layout = nullptr;
  bool matrices = false, apart = false;  // see ParameterUnit
};

// Costs and state by whole shape, equal on all ranks.
struct MatrixNeeds {
  std::function<double(c10::IntArrayRef)> cost;
  std::function<int64_t(c10::IntArrayRef)> state_numel;
};

// Assigns owners greedily: the costliest matrix first, each to the rank with the least cost.
// groups: replicas of all shards on the data axis. round_numel: limit of an owner's elements in a
// round, unless one matrix exceeds it. Depends on shapes alone, and balances only matrices on the
// same ranks, so all ranks that share a matrix agree.
MatrixOwners matrix_owners(const std::vector<MatrixUnit>& units, int groups, int64_t round_numel,
                           const MatrixNeeds& needs);

// Shape of the whole matrix.
std::vector<int64_t> whole_shape(const FlatEntry& entry);

}  // namespace tessera
