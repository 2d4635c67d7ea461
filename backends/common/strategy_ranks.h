// SPDX-License-Identifier: MIT
#pragma once
// The ranks that a strategy works with, by what they share.
#include <array>
#include <cstdint>
#include <memory>

#include "tessera/backends/sharding_setup.h"

namespace tessera {

struct StrategyRanks {
  // Collective where the data axis has more ranks than there are shards.
  StrategyRanks(const ShardingSetup& setup, int count);
  int64_t extra_bytes_sent() const;  // over communicators that are made here
  // This rank's, since the mesh was made: over data, shards, replicas and the tensor axis.
  std::array<int64_t, 4> bytes_sent_by_axis() const;

  Communicator* tensor() const { return tensor_; }  // the tensor axis; null: there is none

  Communicator& data;
  Communicator* world;     // that work on one batch: the mesh, or the data axis where that is all
  Communicator* everyone;  // the mesh: nothing is under way on it within a step
  int sharers = 1, sharer = 0;       // ranks of one data coordinate, and this one's place
  Communicator* shards;              // that own one shard each; the data axis for one shard, too
  Communicator* replicas = nullptr;  // that own the same shard of several; null: this one alone
  Communicator* equal_shards;        // likewise, of one or several

 private:
  Communicator* tensor_ = nullptr;
  std::unique_ptr<Communicator> group_, copies_;
};

}  // namespace tessera
