// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Where each parameter of a block lies in the block's flat buffer, and which part of it each rank
/// owns.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/model/block.h"

namespace tessera {

/// Contiguous elements of a flat buffer.
struct FlatRange {
  int64_t offset = 0;  ///< first element
  int64_t numel = 0;   ///< number of elements
};
FlatRange overlap(const FlatRange& a, const FlatRange& b);  ///< of no elements: there is none

/// One parameter in a flat buffer.
struct FlatEntry {
  std::string name;            ///< the parameter's name inside its block
  std::vector<int64_t> shape;  ///< shape of the rank's tensor
  FlatRange range;             ///< its elements in the flat buffer, without padding
  bool weight_decay = true;    ///< see Parameter
  Placement placement;         ///< see Parameter
  size_t source = 0;           ///< index among the parameters the layout was made of
  UpdateRule rule;             ///< see Parameter
  bool small = false;          ///< see StateRules
};

/// Part of a rank's share with equal treatment.
struct OwnedRun {
  FlatRange range;               ///< in the flat buffer
  bool weight_decay = true;      ///< as of its parameters
  std::vector<Holders> holders;  ///< see Placement
  UpdateRule rule;               ///< as of its parameters
  bool small = false;            ///< see StateRules
};

/// How a flat buffer is cut into shards.
enum class ShardGranularity {
  kFlat,       ///< one segment over the whole buffer (ZeRO-1, ZeRO-2, FSDP)
  kParameter,  ///< one segment per parameter of at least the persistence threshold, one for all
               ///< smaller ones (ZeRO-3)
};

/// Small parameters come last (StateRules), before them those with weight decay first, then those
/// that one rank holds alone, then by group, so that an owned range is few runs of equal treatment;
/// every entry starts at a multiple of alignment() elements. A segment is padded to shards *
/// alignment() and cut into equal shards; rank r owns the r-th of every segment. Every rank
/// computes the same layout.
class FlatLayout {
 public:
  /// Elements: 128 bytes in 16 bit. More where the optimizer's blocks are larger.
  static constexpr int64_t kAlignment = 64;

  FlatLayout() = default;
  /// Lays these parameters out in so many shards; the threshold is in elements.
  FlatLayout(const std::vector<Parameter>& parameters, int shards, ShardGranularity granularity,
             int64_t persistence_threshold = 0, const StateRules& state = {});

  /// Every entry starts at a multiple of so many elements.
  int64_t alignment() const { return alignment_; }
  int shards() const { return shards_; }    ///< the number of shards of every segment
  int64_t numel() const { return numel_; }  ///< with padding
  int64_t shard_numel() const { return numel_ / shards_; }  ///< what one rank owns
  /// What this rank adds to the number of the model's elements (Placement).
  int64_t counted_numel() const;
  /// The parameters in the order of the buffer.
  const std::vector<FlatEntry>& entries() const { return entries_; }
  /// The segments, each cut into shards, in order.
  const std::vector<FlatRange>& segments() const { return segments_; }
  /// Segments from here on hold the small parameters that stay in full on every rank; equals
  /// numel() when there are none.
  int64_t resident_begin() const { return resident_begin_; }

  FlatRange owned(size_t segment, int rank) const;  ///< in the flat buffer
  /// Where the owned part of a segment lies in the rank's compact shard, in which owned parts
  /// follow one another.
  FlatRange compact(size_t segment) const;
  /// The owned range of a segment, cut where the treatment changes.
  std::vector<OwnedRun> owned_runs(size_t segment, int rank) const;

 private:
  int64_t alignment_ = kAlignment;
  int shards_ = 1;
  int64_t numel_ = 0;
  int64_t resident_begin_ = 0;
  std::vector<FlatEntry> entries_;
  std::vector<FlatRange> segments_;
};

///@{
/// Views of a flat buffer whose first element is element base_offset of the layout.
at::Tensor view_of(const at::Tensor& flat, const FlatEntry& entry, int64_t base_offset = 0);
at::Tensor slice_of(const at::Tensor& flat, const FlatRange& range, int64_t base_offset = 0);
///@}

}  // namespace tessera
