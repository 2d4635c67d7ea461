// SPDX-License-Identifier: MIT
#pragma once
// Which rank owns a matrix that is updated as a whole, and in which order they are updated:
// strategies do so, formulas foresee it.
#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/sharding/flat_layout.h"

namespace tessera {

// A part of a matrix as one shard has it.
struct MatrixPiece {
  size_t segment = 0;
  int shard = 0;
  FlatRange range;        // in the unit's flat buffer
  int64_t in_matrix = 0;  // of its first element, in this rank's slice of the matrix
};

// A matrix and the one rank among those of the data axis, and among those that hold slices of it,
// that updates it and keeps its state.
struct OwnedMatrix {
  size_t unit = 0, entry = 0;
  // Of the owner: which group of ranks with one copy of all shards, which shard of it, which rank
  // of Placement::cut.
  int group = 0, shard = 0, slice = 0;
  std::vector<MatrixPiece> pieces;  // of all shards
  // Where it lies among those of its round that its owner has, in elements of its local slice.
  int64_t place = 0;
  // Likewise of all its slices, at the one rank that owns it.
  int64_t slices_place = 0;
};

// Matrices that are gathered, updated and told together.
struct MatrixRound {
  Communicator* cut = nullptr;  // that hold their slices; null: none are cut
  std::vector<OwnedMatrix> matrices;
};

// The most elements of any rank.
struct MatrixRoom {
  int64_t gathered = 0;  // of a round's matrices of one owner: its slices of them
  int64_t slices = 0;    // likewise: all ranks' slices
  int64_t whole = 0;     // of one matrix
  int64_t state = 0;     // of all matrices of one owner: what the optimizer keeps
  double all_state = 0;  // of all matrices; of cut ones the share of a rank that has a slice
  double cost = 0;       // of one owner's updates
};

// Elements that a rank of the data axis sends.
struct MatrixTraffic {
  int64_t gathered = 0;   // pieces of gradients to owners
  int64_t scattered = 0;  // pieces of updates from the owner
  int64_t told = 0;       // pieces of updates over the ranks that hold the same shard
  double slices = 0;      // to the owner of a cut matrix, and as many back: of a rank's average
};

struct MatrixOwners {
  std::vector<MatrixRound> rounds;
  MatrixRoom room;
  std::vector<MatrixTraffic> sent;  // by rank of the data axis
};

struct MatrixUnit {
  const FlatLayout* layout = nullptr;
  bool matrices = false, apart = false;  // see ParameterUnit
};

// By whole shape, the same on all ranks.
struct MatrixNeeds {
  std::function<double(c10::IntArrayRef)> cost;
  std::function<int64_t(c10::IntArrayRef)> state_numel;
};

// groups: copies of all shards on the data axis. round_numel: elements of an owner's matrices in a
// round, unless one alone has more. From shapes alone: all ranks that share a matrix decide alike,
// whatever else their stages have, because only matrices that lie on the same ranks share owners'
// time. The costliest first, each to whoever has least.
MatrixOwners matrix_owners(const std::vector<MatrixUnit>& units, int groups, int64_t round_numel,
                           const MatrixNeeds& needs);

// Of the whole matrix.
std::vector<int64_t> whole_shape(const FlatEntry& entry);

}  // namespace tessera
