// SPDX-License-Identifier: MIT
#pragma once
// Grouping of parameters into units.
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
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
  std::vector<size_t> products;    // by parameter; none: see ParameterUnit::products

  void add(size_t block, Parameter parameter);
  bool frozen() const { return parameters.front().placement.frozen; }
  // Whether they are cut over this expert axis; null: none is.
  bool of_experts(const Communicator* expert) const {
    return expert != nullptr && parameters.front().placement.cut == expert;
  }
  bool matrices() const { return !frozen() && parameters.front().rule.whole_matrix; }
};

// Groups the parameters of consecutive blocks into units. A parameter that is apart is its own
// unit. Others form one unit of each Kind, which following blocks join until all together have
// unit_numel elements. Blocks with complete units share a gather_group until it has message_numel
// elements.
class UnitGrouping {
 public:
  using Close = std::function<void(UnitMembers)>;
  // close: called with every complete unit, by add() and end_block(). expert: the expert axis;
  // null: none.
  UnitGrouping(const ShardingRules& rules, Close close, const Communicator* expert = nullptr);

  // scale: of a frozen parameter in 8 bits; undefined: stored as the others. product: of a trained
  // one that is gathered as codes.
  void add(size_t block, Parameter parameter, bool apart, const at::Tensor& scale = {},
           std::optional<size_t> product = {});
  // ends_unit: no later block joins this one's units or gather_group (BlockBuilder::ends_unit).
  void end_block(bool ends_unit);

 private:
  // What parameters of one unit have in common. Units are closed in this order.
  struct Kind {
    bool experts = false;  // cut over the expert axis
    bool frozen = false;
    bool in_codes = false;  // frozen: stored in 8 bits; trained: gathered in them
    bool matrices = false;  // with a rule for whole matrices
    auto operator<=>(const Kind&) const = default;
  };

  void close(UnitMembers& open);

  int64_t unit_numel_, message_numel_;
  Close close_;
  const Communicator* expert_;
  std::map<Kind, UnitMembers> open_;
  size_t gather_group_ = 0;
  int64_t turn_numel_ = 0;  // complete units of the gather_group
};

}  // namespace tessera
