// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Flat layout: position of each parameter in a unit's flat buffer, and its division into shards.
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
FlatRange overlap(const FlatRange& a, const FlatRange& b);  ///< empty if they are disjoint

/// A parameter in a flat buffer.
struct FlatEntry {
  std::string name;            ///< the parameter's name inside its block
  std::vector<int64_t> shape;  ///< shape of the rank's tensor
  FlatRange range;             ///< its elements in the buffer, without padding
  bool weight_decay = true;    ///< see Parameter
  Placement placement;         ///< see Parameter
  size_t source = 0;           ///< index in the parameters given to the layout
  UpdateRule rule;             ///< see Parameter
  bool small = false;          ///< see StateRules
};

/// Part of a rank's shard whose elements the optimizer treats alike.
struct OwnedRun {
  FlatRange range;                 ///< range in the flat buffer
  bool weight_decay = true;        ///< see Parameter
  std::vector<Replicas> replicas;  ///< see Placement
  UpdateRule rule;                 ///< see Parameter
  bool small = false;              ///< see StateRules
};

/// Unit of sharding of a flat buffer.
enum class ShardGranularity {
  kFlat,  ///< one segment over the whole buffer (ZeRO-1, ZeRO-2, FSDP)
  /// One segment per parameter at or above the persistence threshold, one for all smaller ones
  /// (ZeRO-3).
  kParameter,
};

/// Order of parameters in a flat buffer and its shards, equal on every rank. Order: by weight
/// decay, by replication, by group, with small parameters (StateRules) last, so that a shard has
/// few runs of equal treatment. Entries start at multiples of alignment() elements. Segments are
/// padded to shards * alignment() and divided into equal shards; rank r owns the r-th shard of
/// each.
class FlatLayout {
 public:
  /// Alignment in elements: 128 bytes in 16 bits. More if the optimizer's blocks are larger.
  static constexpr int64_t kAlignment = 64;

  FlatLayout() = default;
  /// Lays out these parameters in so many shards; the threshold is in elements.
  FlatLayout(const std::vector<Parameter>& parameters, int shards, ShardGranularity granularity,
             int64_t persistence_threshold = 0, const StateRules& state = {});

  /// Multiple of elements at which every entry starts.
  int64_t alignment() const { return alignment_; }
  int shards() const { return shards_; }                    ///< number of shards of every segment
  int64_t numel() const { return numel_; }                  ///< elements, padding included
  int64_t shard_numel() const { return numel_ / shards_; }  ///< elements that one rank owns
  /// This rank's contribution to the model's element count (Placement).
  int64_t counted_numel() const;
  /// Parameters in buffer order.
  const std::vector<FlatEntry>& entries() const { return entries_; }
  /// Segments in order, each divided into shards.
  const std::vector<FlatRange>& segments() const { return segments_; }
  /// Start of the segments with small parameters that stay unsharded on every rank; numel() if
  /// there are none.
  int64_t resident_begin() const { return resident_begin_; }

  /// This rank's shard of a segment, in the flat buffer.
  FlatRange owned(size_t segment, int rank) const;
  /// Range of a segment's owned part in the rank's compact shard, the concatenation of owned parts.
  FlatRange compact(size_t segment) const;
  /// The owned part of a segment, split where the treatment changes.
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
/// Views of a flat buffer that starts at element base_offset of the layout.
at::Tensor view_of(const at::Tensor& flat, const FlatEntry& entry, int64_t base_offset = 0);
at::Tensor slice_of(const at::Tensor& flat, const FlatRange& range, int64_t base_offset = 0);
///@}

}  // namespace tessera
