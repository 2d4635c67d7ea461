// SPDX-License-Identifier: MIT
#pragma once
// Coalescing of units into messages, and the size of messages by number of ranks.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/sharding/sharding_rules.h"
#include "tessera/sharding/unit.h"

namespace tessera {

// Latency and bandwidth of a collective: two H100s with NVLink; a ring's latency per rank.
struct CollectiveCost {
  double start_us = 20, rank_us = 2.4, bytes_per_us = 250e3;

  double latency_us(int ranks) const { return start_us + rank_us * ranks; }
};

// [Note: messages that grow with ranks]
// A ring forwards a message once per rank, so its latency grows with their number. If it exceeds a
// block's computation, one message per block slows the step. Neighbouring blocks therefore share
// messages until transfer takes as long as latency. While the constant start dominates the ring,
// each block has its own.
//
// Least bytes of a message over so many ranks; 0: each block has its own.
int64_t least_message_bytes(int ranks, const CollectiveCost& cost = {});

// Least elements of a message, for ShardingRules; asked: ParallelConfig::coalesce_bytes.
int64_t message_numel(int64_t asked, int ranks, int64_t element_size);

// Bucket size of gradients: as configured, but at least a message.
int64_t bucket_bytes(int64_t asked, const ShardingRules& rules, int64_t element_size);

// Messages: units of one gather_group and the same holders are gathered together, and their
// gradients reduced together; a unit that is apart has its own.
struct Messages {
  explicit Messages(const std::vector<ParameterUnit>& units);

  const std::vector<size_t>& with(size_t unit) const { return units[of_unit[unit]]; }

  std::vector<size_t> of_unit;             // message of each unit
  std::vector<std::vector<size_t>> units;  // by message
  std::vector<size_t> trained;             // by message: number of its trained units
};

}  // namespace tessera
