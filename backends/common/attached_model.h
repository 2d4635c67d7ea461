// SPDX-License-Identifier: MIT
#pragma once
// A model as a strategy holds it.
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backends/common/strategy_ranks.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/model/model_spec.h"
#include "tessera/sharding/sharding_rules.h"
#include "tessera/sharding/unit.h"

namespace tessera {

// What attach() makes of a ModelSpec; constant afterwards. Stores refer to its units.
struct AttachedModel {
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<std::string> names;      // of the blocks
  std::vector<bool> recomputed;        // of the blocks: see BlockBuilder
  std::vector<Communicator*> sharers;  // of the blocks: see BlockBuilder
  std::vector<ParameterUnit> units;
  std::vector<std::vector<size_t>> units_of_block, trained_units_of_block;
  // Of the blocks: messages that bring their units, in order, and all units that come with these.
  std::vector<std::vector<size_t>> messages_of_block, units_with_block;
  // Of tied parameters whose owner is on another stage, "block.parameter": the owner's name.
  std::map<std::string, std::string> owner_elsewhere;
  std::vector<Communicator*> holders_of_ties;  // between stages, in the same order on all of them
  bool has_loss = true;
  uint64_t seed = 0;
  int64_t parameter_count = 0;  // of all stages; tied parameters once
  bool is_trained = true;       // some parameter of some stage is

  // Throws Error(kInvalidArgument) for a model without anything to train.
  void require_trained(const std::string& strategy) const;
  // Throws Error(kInvalidArgument) where packed rows come to a block that does not keep to them.
  void require_packed_rows(const MicroBatch& micro_batch, const std::string& strategy) const;
  // Running statistics become those of the rank of the data axis that is named for them.
  // Collective.
  void adopt_statistics(Communicator& data) const;
  // Whether a GPU may record the work of all blocks.
  bool all_recordable(bool training) const;
};

// Throws Error(kInvalidArgument) for what no strategy takes.
void check_model(const ModelSpec& model, const PrecisionConfig& precision);

// Builds the blocks of spec into an empty model. take gets the full fp32 values of every unit when
// it is complete, so that no rank ever holds more than one unit it does not keep. The stores give
// the handles of units their storage later. Collective.
using UnitTaker = std::function<void(size_t unit, const at::Tensor& full_fp32)>;
void build_model(const ModelSpec& spec, const BuildContext& context, const ShardingRules& rules,
                 const StrategyRanks& ranks, const UnitTaker& take, AttachedModel& model);

// By the blocks' own account; an alias of a tied parameter counts at most like its owner.
int64_t expected_numel(const ModelSpec& spec);

// What the buffer is on every rank of the data axis: a copy. Collective.
at::Tensor value_of(const Buffer& buffer, Communicator& data);

}  // namespace tessera
