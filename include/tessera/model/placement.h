// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Placement of a parameter on the model's axes (tensor, pipeline); the strategy shards it further
/// over the data axis. Norms, counts, visits, reductions over replicas and the saved state follow
/// from it.
#include <c10/util/ArrayRef.h>
#include <c10/util/accumulate.h>

#include <cstdint>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera {

/// Slice of a parameter under tensor parallelism. Default: replicated on all tensor ranks.
struct TensorShard {
  int dim = -1;  ///< sliced dimension; -1: not sliced
  /// Number of equal parts of the whole dimension, each of which is sliced: 3 for queries, keys and
  /// values stored one after the other.
  int parts = 1;
  int64_t full_size = 0;  ///< extent of the dimension in the whole parameter, without padding

  bool replicated() const { return dim < 0; }  ///< whether it is not sliced
  /// Elements of the whole parameter, from the local tensor's shape.
  int64_t whole_numel(c10::IntArrayRef local) const {
    const int64_t numel = c10::multiply_integers(local);
    return replicated() || numel == 0 ? numel : numel / local[dim] * full_size;
  }
  bool operator==(const TensorShard&) const = default;  ///< compares all members
};

/// Ranks that hold the same value of a parameter (replicas).
struct Replicas {
  Communicator* ranks = nullptr;  ///< the ranks, this one included
  /// Their gradients are partial and the strategy sums them once a step; otherwise they are equal
  /// already.
  bool partial = false;
  bool operator==(const Replicas&) const = default;  ///< compares both members
};

/// Placement of a parameter on this rank. Communicators outlive the model and its strategy.
struct Placement {
  Communicator* cut = nullptr;  ///< ranks that hold its slices; null: whole on this rank
  TensorShard shard;  ///< this rank's slice; with a null cut: that of a rank on another stage
  std::vector<Replicas> replicas;  ///< ranks with the same value, along independent axes
  bool frozen = false;             ///< no gradient, no optimizer state, never changed

  /// Whether this rank is the first of all replicas, which counts and reports for all.
  bool is_first_replica() const {
    for (const Replicas& held : replicas) {
      if (held.ranks->rank() != 0) return false;
    }
    return true;
  }
  /// Whether any replicas' gradients are partial sums.
  bool partial() const {
    for (const Replicas& held : replicas) {
      if (held.partial) return true;
    }
    return false;
  }
  /// This rank's contribution to the whole model's element count.
  int64_t counted_numel(c10::IntArrayRef local) const {
    const bool counts = is_first_replica() && (cut == nullptr || cut->rank() == 0);
    return counts ? shard.whole_numel(local) : 0;
  }
};

}  // namespace tessera
