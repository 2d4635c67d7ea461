// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Model description: a list of block builders, so that a rank builds only its own blocks, one at a
/// time.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/model/block.h"

namespace tessera {

class Communicator;
struct LoraRule;

/// Source of pretrained weights for block builders, implemented by checkpoint readers.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual bool has(const std::string& name) const = 0;  ///< whether a tensor of this name exists
  /// Reads a tensor to the CPU in its stored dtype. Throws Error(kDataLoss) with file and name if
  /// it is missing or of another shape.
  virtual at::Tensor read(const std::string& name, at::IntArrayRef shape) const = 0;
};

/// Inputs of block builders.
struct BuildContext {
  at::Device device = at::kCPU;          ///< device of the parameters
  uint64_t seed = 0;                     ///< block i draws its weights from block_seed(seed, i)
  const TensorSource* source = nullptr;  ///< pretrained weights; null: random ones
  /// Tensor-parallel ranks; null: each rank has whole layers. Set by shared_by().
  Communicator* tensor = nullptr;
  /// Norms and residuals hold only this rank's part of the sequence (Korthikanti et al. 2022).
  bool sequence_parallel = false;
  /// Ranks that own a part of a layer's experts each; null: this rank has all. Beside `tensor` not
  /// built. Set by the strategy.
  Communicator* expert = nullptr;
  /// Set by add_lora(): blocks create adapters for the modules that it targets. Null: none.
  std::shared_ptr<const LoraRule> lora = nullptr;
  /// Set by chain(): name of an adapted module in the chain. Empty: its own.
  std::string chained_as = {};
  size_t chained_index = 0;  ///< index among the blocks of the whole chain
  /// Output on the meta device of a block of the whole model, for a pipeline stage without
  /// neighbours. Set by dry_step().
  std::function<at::Tensor(size_t block, const MicroBatch& micro_batch)> output_of = {};
};

/// Seed of a block's weights, which are therefore equal under every layout of ranks.
uint64_t block_seed(uint64_t seed, size_t block_index);

/// Two parameters that are one. block: name of the block; parameter: name in it.
struct TiedParameter {
  std::string owner_block, owner_parameter;  ///< the parameter with the tensor
  std::string alias_block, alias_parameter;  ///< the parameter that shares it
  /// Set by pipelines when the two lie on different stages: the ranks with a copy, the owner's
  /// first. Only one of the two blocks is on this rank; an alias is initialised from `copy`.
  Communicator* replicas = nullptr;
  std::shared_ptr<const Parameter> copy = nullptr;  ///< the owner's parameter; see replicas
};

/// Cost of a block, for balancing stages. Zeros: unknown.
struct BlockCost {
  int64_t parameters = 0;  ///< elements, aliases included
  /// Forward and backward, without parts that depend on the sequence length.
  double flops_per_token = 0;
};

/// Description of one block.
struct BlockBuilder {
  std::string name;  ///< unique in the model, e.g. "h.3"
  /// Builds the block in fp32 on context.device. An alias of another block's parameter
  /// (ModelSpec::tied) is a tied_placeholder(); the strategy gives it its storage.
  std::function<std::unique_ptr<Block>(const BuildContext&)> build;
  BlockCost cost = {};     ///< balances pipeline stages; zeros: unknown
  bool ends_unit = false;  ///< strategies never put its parameters into one unit with later blocks'
  bool recomputed = false;  ///< set by strategies: see ParallelConfig::recomputed_blocks
  /// Weights come from the user's program: data ranks copy the first one's. Otherwise they are
  /// equal already.
  bool from_first_rank = false;
  Communicator* sharers = nullptr;  ///< set by shared_by(): the ranks that build it together
  /// Number of tensors from the previous block and to the next one, checked by chain(). Several are
  /// sent as one (block_of()).
  int takes = 1, gives = 1;
  /// Set by with_groups() and with_decay(): changes to a parameter. Null: none.
  std::function<void(Parameter&)> revise = nullptr;

  std::vector<Parameter> parameters_of(Block& built) const;  ///< with `revise` applied
};

/// A model: blocks in order, and tied parameters.
struct ModelSpec {
  std::string name;                  ///< e.g. "bloom-560m"
  std::vector<BlockBuilder> blocks;  ///< in the order they run in
  std::vector<TiedParameter> tied;   ///< pairs of parameters that share a tensor
  /// Whether the last block returns the loss; false for a part without the model's end.
  bool has_loss = true;
  /// Tensor-parallel degrees must divide this number, e.g. attention heads; 0: blocks ignore
  /// BuildContext::tensor.
  int64_t tensor_divisor = 0;
  /// Expert axes must divide this number of experts; 0: blocks ignore BuildContext::expert.
  int64_t expert_divisor = 0;
  /// Whether all pipeline stages can share the first and the last block: these can be built for a
  /// tensor axis of their own, and take and return whole tensors.
  bool shareable_ends = false;
  bool matrices_marked = false;  ///< whether UpdateRule::whole_matrix is set
  /// FLOPs of forward and backward per token at this sequence length: 6P + 6*layers*hidden*sequence
  /// (causal attention counted at half). Null: unknown.
  std::function<double(int64_t sequence_length)> flops_per_token;
  /// "block.parameter" -> name in a Hugging Face checkpoint. Null: the same name.
  std::function<std::string(const std::string& block, const std::string& parameter)>
      checkpoint_name;

  /// LoraRule::target_modules when empty: PEFT's choice for models of this kind.
  std::vector<std::string> default_lora_targets;

  /// The parameter's checkpoint_name, or "block.parameter".
  std::string stored_name(const std::string& block, const std::string& parameter) const {
    return checkpoint_name ? checkpoint_name(block, parameter) : block + "." + parameter;
  }
  size_t block_count() const { return blocks.size(); }  ///< number of blocks
  /// The blocks with these increasing indices; ties inside them stay.
  ModelSpec subset(const std::vector<size_t>& indices) const;
  ModelSpec slice(size_t first, size_t count) const;  ///< contiguous blocks
};

/// The model with the parameters frozen for which frozen(block, parameter) is true.
ModelSpec freeze(
    ModelSpec model,
    std::function<bool(const std::string& block, const std::string& parameter)> frozen);

/// Description of a parameter without its values.
struct ParameterInfo {
  std::string block, name;     ///< names of the block and of the parameter in it
  std::vector<int64_t> shape;  ///< shape of the whole parameter
  bool trained = true;         ///< false: frozen
  bool alias = false;          ///< whether it is an alias of a tied parameter
  int64_t numel() const;       ///< number of elements
};
/// Parameters of all blocks in order. Builds every block once: torch modules on the CPU, others on
/// the meta device.
std::vector<ParameterInfo> parameters_of(const ModelSpec& model);

/// Number of elements of a model.
struct ParameterCount {
  int64_t all = 0, trained = 0;  ///< elements; tied ones once
};
/// Counts the elements of all blocks; builds them like parameters_of().
ParameterCount parameter_count(const ModelSpec& model);

/// A leaf of the given shape with memory of one element: placeholder of a tied parameter until a
/// strategy gives it storage. device: BuildContext's, which a build on meta needs.
at::Tensor tied_placeholder(at::IntArrayRef shape, at::Device device = at::kCPU);

}  // namespace tessera
