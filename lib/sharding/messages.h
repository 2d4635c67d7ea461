// SPDX-License-Identifier: MIT
#pragma once
// Which units travel together, and how much must travel together as ranks become many: the one
// place that decides both.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/sharding/sharding_rules.h"
#include "tessera/sharding/unit.h"

namespace tessera {

// What a collective takes beside its bytes. Two H100s with NVLink; the part of a rank as rings have
// it.
struct CollectiveCost {
  double start_us = 20, rank_us = 2.4, bytes_per_us = 250e3;

  double latency_us(int ranks) const { return start_us + rank_us * ranks; }
};

// [Note: messages that grow with ranks]
// A ring hands a message on once for every rank, so what a message takes beside its bytes grows
// with their number, and where it exceeds what a block computes, a message for every block holds
// the step back. Neighbouring blocks therefore share one until its bytes take as long as that. As
// long as the start outweighs the ring, which is the same for all messages, each block has its own.
//
// Bytes of a message over so many ranks; 0: each block has its own.
int64_t least_message_bytes(int ranks, const CollectiveCost& cost = {});

// The same in elements, for ShardingRules; asked: ParallelConfig::message_bytes.
int64_t message_numel(int64_t asked, int ranks, int64_t element_size);

// Bytes of gradients that are reduced together: as asked, but no less than a message.
int64_t bucket_bytes(int64_t asked, const ShardingRules& rules, int64_t element_size);

// Units of one turn are gathered together, and their gradients reduced together; one that is apart
// alone.
struct Messages {
  explicit Messages(const std::vector<ParameterUnit>& units);

  const std::vector<size_t>& with(size_t unit) const { return units[of_unit[unit]]; }

  std::vector<size_t> of_unit;             // the message of each unit
  std::vector<std::vector<size_t>> units;  // of each message
  std::vector<size_t> trained;             // units of each message that are not frozen
};

}  // namespace tessera
