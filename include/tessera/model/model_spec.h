// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// A model as a list of block builders, so that a rank builds only the blocks it owns, one at a
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

/// Where a block builder finds pretrained weights. Implemented by checkpoint readers.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual bool has(const std::string& name) const = 0;  ///< whether there is a tensor of this name
  /// A new tensor on the CPU in its stored dtype; throws Error(kDataLoss) with file and name when
  /// missing or of another shape.
  virtual at::Tensor read(const std::string& name, at::IntArrayRef shape) const = 0;
};

/// What blocks are built with.
struct BuildContext {
  at::Device device = at::kCPU;          ///< where parameters are made
  uint64_t seed = 0;                     ///< block i draws its weights from block_seed(seed, i)
  const TensorSource* source = nullptr;  ///< pretrained weights; null draws them
  /// Ranks that share every layer of this model; null: each rank has whole layers. Set by
  /// shared_by().
  Communicator* tensor = nullptr;
  /// Norms and residuals hold only the rank's part of the sequence (Korthikanti et al. 2022).
  bool sequence_parallel = false;
  /// Set by add_lora(): blocks make adapters for the modules that it targets. Null: they make none.
  std::shared_ptr<const LoraRule> lora = nullptr;
  /// Set by chain(): what an adapted module is called there, and its place. Empty: its own.
  std::string chained_as = {};
  size_t chained_index = 0;  ///< place among the blocks of the whole chain
  /// On the meta device, where no other pipeline stage can say it: what a block of the whole model
  /// gives for a micro-batch, without memory. dry_step() sets it.
  std::function<at::Tensor(size_t block, const MicroBatch& micro_batch)> output_of = {};
};

/// Weights are drawn per block, so they are the same on every layout of ranks.
uint64_t block_seed(uint64_t seed, size_t block_index);

/// "block" is the block's name, "parameter" the parameter's name inside it.
struct TiedParameter {
  std::string owner_block, owner_parameter;  ///< the place that has the tensor
  std::string alias_block, alias_parameter;  ///< the place that uses it, too
  /// Set by pipelines when the two lie on different stages: the ranks that hold a copy, the owner's
  /// first. Then only one of the blocks is here; when that is the alias's, it starts as `copy`.
  Communicator* holders = nullptr;
  std::shared_ptr<const Parameter> copy = nullptr;  ///< the owner's parameter; see holders
};

/// What a block costs; by it stages are balanced. Zeros: unknown.
struct BlockCost {
  int64_t parameters = 0;  ///< elements, aliases included
  /// forward and backward, without what depends on the sequence length
  double flops_per_token = 0;
};

/// How one block is made.
struct BlockBuilder {
  std::string name;  ///< unique in the model, e.g. "h.3"
  /// Builds the block in fp32 on context.device. A parameter that aliases another block's
  /// (ModelSpec::tied) is built without memory (see tied_placeholder()); the strategy gives it its
  /// storage.
  std::function<std::unique_ptr<Block>(const BuildContext&)> build;
  BlockCost cost = {};      ///< balances pipeline stages; zeros: unknown
  bool ends_unit = false;   ///< strategies never handle its parameters together with later blocks'
  bool recomputed = false;  ///< set by strategies: see ParallelConfig::recomputed_blocks
  /// The weights come from the user's program: every data rank takes the first one's. Else they
  /// must be equal already.
  bool from_first_rank = false;
  Communicator* sharers = nullptr;  ///< set by shared_by(): the ranks that build it together
  /// Tensors that it takes from the block before and gives to the next one, which chain() compares;
  /// several travel as one (block_of()).
  int takes = 1, gives = 1;
  /// Set by with_groups() and with_decay(): what they change of a parameter. Null: nothing.
  std::function<void(Parameter&)> revise = nullptr;

  std::vector<Parameter> parameters_of(Block& built) const;  ///< revised
};

/// A model: blocks in order, and what ties them.
struct ModelSpec {
  std::string name;                  ///< e.g. "bloom-560m"
  std::vector<BlockBuilder> blocks;  ///< in the order they run in
  std::vector<TiedParameter> tied;   ///< parameters that are one
  /// the last block returns the loss; false in parts without the model's end
  bool has_loss = true;
  /// As many ranks as divide this number (e.g. of attention heads) can share every layer as
  /// BuildContext::tensor; 0: the blocks ignore it.
  int64_t tensor_divisor = 0;
  /// The first and the last block can be built for a tensor axis of their own, whatever is between
  /// them, and take and return whole tensors: all stages of a pipeline can share them.
  bool shareable_ends = false;
  bool matrices_marked = false;  ///< UpdateRule::whole_matrix is set where it has to be
  /// Floating-point operations of forward and backward for one token at this sequence length: 6P +
  /// 6*layers*hidden*sequence (causal attention counted at half). Null when unknown.
  std::function<double(int64_t sequence_length)> flops_per_token;
  /// "block.parameter" -> the name in a Hugging Face checkpoint. Null: the same name.
  std::function<std::string(const std::string& block, const std::string& parameter)>
      checkpoint_name;

  /// What LoraRule::target_modules means when it is empty: PEFT's choice for models of this kind.
  std::vector<std::string> default_lora_targets;

  /// checkpoint_name's, or "block.parameter".
  std::string stored_name(const std::string& block, const std::string& parameter) const {
    return checkpoint_name ? checkpoint_name(block, parameter) : block + "." + parameter;
  }
  size_t block_count() const { return blocks.size(); }  ///< blocks of this spec
  /// The blocks at these places in this order (increasing); ties with both ends inside stay.
  ModelSpec subset(const std::vector<size_t>& indices) const;
  ModelSpec slice(size_t first, size_t count) const;  ///< contiguous blocks
};

/// The model with the parameters frozen for which frozen(block, parameter) says so.
ModelSpec freeze(
    ModelSpec model,
    std::function<bool(const std::string& block, const std::string& parameter)> frozen);

/// What one parameter is, without its values.
struct ParameterInfo {
  std::string block, name;     ///< names of the block, and of the parameter inside it
  std::vector<int64_t> shape;  ///< shape of the whole parameter
  bool trained = true;         ///< false: frozen
  bool alias = false;          ///< of a tied parameter
  int64_t numel() const;       ///< number of elements
};
/// Of all blocks in order. Every block is built once: torch modules on the CPU, others on the meta
/// device, without memory.
std::vector<ParameterInfo> parameters_of(const ModelSpec& model);

/// Elements of a model.
struct ParameterCount {
  int64_t all = 0, trained = 0;  ///< elements; tied ones once
};
/// Counts the elements of all blocks, which are built as parameters_of() builds them.
ParameterCount parameter_count(const ModelSpec& model);

/// A leaf of the given shape that occupies one element: stands for a tied parameter until a
/// strategy gives it storage. device: BuildContext's; without it the block cannot be built on meta.
at::Tensor tied_placeholder(at::IntArrayRef shape, at::Device device = at::kCPU);

}  // namespace tessera
