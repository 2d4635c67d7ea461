// SPDX-License-Identifier: MIT
#pragma once
// Process groups of a strategy, by what their ranks share.
#include <array>
#include <cstdint>
#include <memory>

#include "tessera/backends/sharding_setup.h"
#include "tessera/sharding/unit.h"

namespace tessera {

struct ProcessGroups {
  // Collective if the data axis has more ranks than there are shards.
  ProcessGroups(const ShardingSetup& setup, int count);
  int64_t extra_bytes_sent() const;  // over communicators made here
  // Bytes sent by this rank since the mesh was made: over data, shards, replicas, the tensor, the
  // context and the expert axis, and over holders of the same experts.
  std::array<int64_t, 7> bytes_sent_by_axis() const;

  Communicator* tensor() const { return tensor_; }    // the tensor axis; null: none
  Communicator* context() const { return context_; }  // the context axis; null: one rank
  Communicator* expert() const { return expert_; }    // the expert axis; null: one rank
  // Data ranks with the same experts; null: no expert axis.
  Communicator* expert_holders() const { return expert_holders_; }
  // Ranks that own one shard of the unit each. Ranks that own the same one; null: only this rank.
  Communicator& shards_of(const ParameterUnit& unit) const { return unit.ranks(*shards); }
  Communicator* shard_replicas_of(const ParameterUnit& unit) const {
    if (unit.holders == nullptr) return shard_replicas;
    return unit.layout.shards() > 1 ? nullptr : unit.holders;
  }

  Communicator& data;           // the data axis; with a context axis data x context
  int data_rank;                // this rank's coordinate on the data axis alone
  Communicator* world;          // ranks that share a batch: the mesh, or the data axis if it is all
  Communicator* everyone;       // the mesh, idle within a step
  int sharers = 1, sharer = 0;  // ranks of one data coordinate, and this one's index
  Communicator* shards;         // ranks that own one shard each; the data axis for one shard, too
  // ranks that own the same shard, if several; null: only this one
  Communicator* replicas = nullptr;
  Communicator* shard_replicas;  // ranks that own the same shard, one or several

 private:
  Communicator *tensor_ = nullptr, *context_ = nullptr;
  Communicator *expert_ = nullptr, *expert_holders_ = nullptr;
  std::unique_ptr<Communicator> group_, copies_;
};

}  // namespace tessera
