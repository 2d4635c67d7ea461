// SPDX-License-Identifier: MIT
#pragma once
// Grouping of parameters into units.
#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/model/block.h"
#include "tessera/sharding/sharding_rules.h"

namespace tessera {

// Parameters of a unit before its layout.
struct UnitMembers {
  std::vector<Parameter> parameters;
  std::vector<size_t> block_of;  // by parameter
  std::vector<size_t> users;     // blocks, each once
  int64_t numel = 0;
  bool apart = false;              // one parameter with several uses
  size_t gather_group = 0;         // see ParameterUnit
  std::vector<at::Tensor> scales;  // by parameter, fp32 []; none: see ParameterUnit::scales

  void add(size_t block, Parameter parameter);
  bool frozen() const { return parameters.front().placement.frozen; }
  // Whether they are cut over this expert axis; null: none is.
  bool of_experts(const Communicator* expert) const {
    return expert != nullptr && parameters.front().placement.cut == expert;
  }
  bool matrices() const { return !frozen() && parameters.front().rule.whole_matrix; }
};

// Groups the parameters of consecutive blocks into units. A parameter that is apart is its own
// unit. Others form up to six units (element-wise, whole-matrix, frozen, frozen in 8 bits; of
// experts on an expert axis trained and frozen), which following blocks join until all together
// have unit_numel elements. Blocks with complete units share a gather_group until it has
// message_numel elements.
class UnitGrouping {
 public:
  using Close = std::function<void(UnitMembers)>;
  // close: called with every complete unit, by add() and end_block().
  // expert: the expert axis, whose parameters form units of their own; null: none.
  UnitGrouping(const ShardingRules& rules, Close close, const Communicator* expert = nullptr);

  // scale: of a frozen parameter in 8 bits; undefined: stored as the others.
  void add(size_t block, Parameter parameter, bool apart, const at::Tensor& scale = {});
  // ends_unit: no later block joins this one's units or gather_group (BlockBuilder::ends_unit).
  void end_block(bool ends_unit);

 private:
  void close(UnitMembers& open);
  UnitMembers& open_for(const Parameter& parameter);

  int64_t unit_numel_, message_numel_;
  Close close_;
  const Communicator* expert_;
  UnitMembers trained_, matrices_, frozen_, coded_, trained_experts_, frozen_experts_;
  size_t gather_group_ = 0;
  int64_t turn_numel_ = 0;  // complete units of the gather_group
};

}  // namespace tessera
