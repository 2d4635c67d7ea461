// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Where the model's own axes put a parameter; how the data axis cuts it further is the strategy's
/// business. Norms, counts, visits, late sums and the state of a model follow from it.
#include <c10/util/ArrayRef.h>
#include <c10/util/accumulate.h>

#include <cstdint>
#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera {

/// How a parameter's local tensor relates to the whole one under tensor parallelism. The default:
/// every tensor rank holds all of it.
struct TensorShard {
  int dim = -1;  ///< the local tensor is the rank's slice of this dimension; -1: not sliced
  /// The whole dimension consists of this many equal parts, and the local one of a slice of each in
  /// the same order: 3 for queries, keys and values stored one after the other.
  int parts = 1;
  int64_t full_size = 0;  ///< of the dimension in the whole parameter, without padding

  bool replicated() const { return dim < 0; }  ///< whether it is not sliced
  /// Elements of the whole parameter, given the shape of the local tensor.
  int64_t whole_numel(c10::IntArrayRef local) const {
    const int64_t numel = c10::multiply_integers(local);
    return replicated() || numel == 0 ? numel : numel / local[dim] * full_size;
  }
  bool operator==(const TensorShard&) const = default;  ///< compares all members
};

/// Ranks that hold the same value of a parameter.
struct Holders {
  Communicator* ranks = nullptr;  ///< the ranks, this one included
  /// Their gradients are parts of the sum, which the strategy makes once a step; else they are
  /// equal already.
  bool partial = false;
  bool operator==(const Holders&) const = default;  ///< compares both members
};

/// Communicators outlive the model and its strategy.
struct Placement {
  Communicator* cut = nullptr;   ///< the ranks that hold its slices; null: it is whole here
  TensorShard shard;             ///< the slice; of one rank of cut when that is null
  std::vector<Holders> holders;  ///< ranks with the same value, along independent axes
  bool frozen = false;           ///< no gradient, no optimizer state, never changed

  /// One rank speaks for all holders: what is counted or said once, it counts and says.
  bool first_holder() const {
    for (const Holders& held : holders) {
      if (held.ranks->rank() != 0) return false;
    }
    return true;
  }
  /// Whether any holders' gradients are parts of a sum.
  bool partial() const {
    for (const Holders& held : holders) {
      if (held.partial) return true;
    }
    return false;
  }
  /// What this rank adds to the number of the whole model's elements.
  int64_t counted_numel(c10::IntArrayRef local) const {
    const bool counts = first_holder() && (cut == nullptr || cut->rank() == 0);
    return counts ? shard.whole_numel(local) : 0;
  }
};

}  // namespace tessera
