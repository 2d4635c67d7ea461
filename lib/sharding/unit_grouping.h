// SPDX-License-Identifier: MIT
#pragma once
// Which parameters become a unit: strategies make their units with it, formulas foresee them.
#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/model/block.h"
#include "tessera/sharding/sharding_rules.h"

namespace tessera {

// The parameters of a unit, before it is laid out.
struct UnitMembers {
  std::vector<Parameter> parameters;
  std::vector<size_t> block_of;  // by parameter
  std::vector<size_t> users;     // blocks, each once
  int64_t numel = 0;
  bool apart = false;  // one parameter that several places use
  size_t turn = 0;     // see ParameterUnit

  void add(size_t block, Parameter parameter);
  bool frozen() const { return parameters.front().placement.frozen; }
  bool matrices() const { return !frozen() && parameters.front().rule.whole_matrix; }
};

// Takes the parameters of one block after the other. One that is apart is a unit of its own. The
// others of a block form up to three units, of what is trained by elements, what is trained by
// whole matrices and what is frozen, and share them with those of the blocks that follow until all
// together hold unit_numel elements. Blocks whose units are complete share a turn with those that
// follow until the turn holds message_numel elements.
class UnitGrouping {
 public:
  using Close = std::function<void(UnitMembers)>;
  // close is called with every unit that is complete, from inside add() and end_block().
  UnitGrouping(const ShardingRules& rules, Close close);

  void add(size_t block, Parameter parameter, bool apart);
  // ends_unit: no later block shares a unit or a turn with this one (BlockBuilder::ends_unit).
  void end_block(bool ends_unit);

 private:
  void close(UnitMembers& open);
  UnitMembers& open_for(const Parameter& parameter);

  int64_t unit_numel_, message_numel_;
  Close close_;
  UnitMembers trained_, matrices_, frozen_;
  size_t turn_ = 0;
  int64_t turn_numel_ = 0;  // of units that are complete
};

}  // namespace tessera
