// SPDX-License-Identifier: MIT
#include "lib/sharding/messages.h"

#include <algorithm>
#include <map>

namespace tessera {

int64_t least_message_bytes(int ranks, const CollectiveCost& cost) {
  if (cost.rank_us * ranks <= cost.start_us) return 0;
  return static_cast<int64_t>(cost.latency_us(ranks) * cost.bytes_per_us);
}

int64_t message_numel(int64_t asked, int ranks, int64_t element_size) {
  return (asked > 0 ? asked : least_message_bytes(ranks)) / element_size;
}

int64_t bucket_bytes(int64_t asked, const ShardingRules& rules, int64_t element_size) {
  return std::max(asked, rules.message_numel * element_size);
}

Messages::Messages(const std::vector<ParameterUnit>& all) {
  std::map<std::pair<size_t, const Communicator*>, size_t> of_group;
  for (size_t unit = 0; unit < all.size(); ++unit) {
    size_t message = units.size();
    if (!all[unit].apart) {
      const std::pair place{all[unit].gather_group, all[unit].holders};
      message = of_group.try_emplace(place, message).first->second;
    }
    if (message == units.size()) {
      units.emplace_back();
      trained.push_back(0);
    }
    of_unit.push_back(message);
    units[message].push_back(unit);
    if (!all[unit].frozen) ++trained[message];
  }
}

}  // namespace tessera
