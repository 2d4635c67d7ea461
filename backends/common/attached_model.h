// SPDX-License-Identifier: MIT
#pragma once
// Attached model: blocks and units that a strategy holds.
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backends/common/process_groups.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/model/model_spec.h"
#include "tessera/sharding/sharding_rules.h"
#include "tessera/sharding/unit.h"

namespace tessera {

// Result of attach() for a ModelSpec; constant afterwards. Stores refer to its units.
struct AttachedModel {
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<std::string> names;      // of each block
  std::vector<bool> recomputed;        // of each block: see BlockBuilder
  std::vector<Communicator*> sharers;  // of each block: see BlockBuilder
  std::vector<ParameterUnit> units;
  std::vector<std::vector<size_t>> units_of_block, trained_units_of_block;
  // By block: messages that gather its units, in order, and all units in these messages.
  std::vector<std::vector<size_t>> messages_of_block, units_with_block;
  // Tied parameters with an owner on another stage: "block.parameter" -> the owner's name.
  std::map<std::string, std::string> owner_elsewhere;
  // communicators between stages, in the same order on all of them
  std::vector<Communicator*> replicas_of_ties;
  bool has_loss = true;
  uint64_t seed = 0;
  int64_t parameter_count = 0;  // all stages; tied parameters once
  bool is_trained = true;       // whether any parameter of any stage is trained
  bool has_codes = false;       // whether any unit of any stage is stored in 8 bits
  std::string refuses_packed;   // the first block of any stage that takes no packed rows; or empty

  // Throws Error(kInvalidArgument) for a model without trained parameters.
  void require_trained(const std::string& strategy) const;
  // Throws Error(kInvalidArgument), equal on all ranks, for packed rows if a block of any stage
  // does not support them.
  void require_packed_rows(const MicroBatch& micro_batch, const std::string& strategy) const;
  // Throws Error(kInvalidArgument) for a context axis of so many ranks if a block takes no cut
  // rows.
  void require_cut_rows(int ranks, const std::string& strategy) const;
  // Throws Error(kInvalidArgument) for products in 8 bits if no block has them.
  void require_fp8(const std::string& strategy) const;
  // Throws Error(kInvalidArgument) for frozen weights in 8 bits if the model has none.
  void require_codes(const std::string& strategy) const;
  // Copies running statistics from their data rank. Collective.
  void adopt_statistics(Communicator& data) const;
  // Whether all blocks support CUDA graphs.
  bool all_recordable(bool training) const;
};

// Throws Error(kInvalidArgument) for models that no strategy supports.
void check_model(const ModelSpec& model, const PrecisionConfig& precision);

// Builds the blocks of spec into an empty model. Passes the full fp32 values of each complete unit
// to take, so that a rank never holds more than one unsharded unit. Stores assign storage to the
// handles later. Collective.
using UnitTaker = std::function<void(size_t unit, const at::Tensor& full_fp32)>;
// frozen: storage of frozen weights of linear layers; their scales come from these values.
void build_model(const ModelSpec& spec, const BuildContext& context, const ShardingRules& rules,
                 FrozenDtype frozen, const ProcessGroups& ranks, const UnitTaker& take,
                 AttachedModel& model);

// Element count by the blocks' own figures; an alias of a tied parameter counts at most like its
// owner.
int64_t expected_numel(const ModelSpec& spec);

// A copy of the buffer's value, equal on every data rank. Collective.
at::Tensor value_of(const Buffer& buffer, Communicator& data);

}  // namespace tessera
