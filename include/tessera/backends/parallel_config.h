// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Parallel layout of a run: strategy, precision and sizes for make_strategy().
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/backends/strategy.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/model/cut_rows.h"
#include "tessera/ops/fp8.h"

namespace tessera {

/// Storage of frozen weights of decoder blocks' linear layers. kSame: the compute dtype. kFp8:
/// 8-bit codes with one scale a matrix, decoded for one block at a time (docs/concepts/fp8.md).
enum class FrozenDtype : int8_t { kSame, kFp8 };

/// Dtypes of parameters, gradients and their sums.
struct PrecisionConfig {
  at::ScalarType parameter = at::kFloat;  ///< compute dtype: kFloat, kBFloat16 or kHalf
  /// Dtype in which backward accumulates gradients; the parameter dtype unless given.
  std::optional<at::ScalarType> gradient;
  /// Dtype of collectives; the gradient dtype unless given.
  std::optional<at::ScalarType> reduce;
  /// Storage of frozen weights of decoder blocks' linear layers.
  FrozenDtype frozen = FrozenDtype::kSame;
  /// Products of decoder blocks' linear layers in steps; evaluations are in the compute dtype.
  Fp8 fp8 = Fp8::kOff;
  /// Layers with such products, as name_of(Fp8Layers) writes them.
  std::string fp8_layers = "all";

  /// The dtype of accumulated gradients.
  at::ScalarType gradient_dtype() const { return gradient.value_or(parameter); }
  /// The dtype of gradients in collectives.
  at::ScalarType reduce_dtype() const { return reduce.value_or(gradient_dtype()); }
};

/// States kept in host memory between steps.
enum class Offload { kNone, kOptimizer, kOptimizerAndParameters };

/// Location of the update of offloaded state: the host's cores, or the device, through which the
/// state streams; kBoth: each updates some units, at once. kAuto: on a GPU the fastest one,
/// measured in attach(). AdamW and Adam give the same bits everywhere.
enum class OffloadStep { kAuto, kHost, kDevice, kBoth };

/// Contents of host memory, and the update of offloaded state.
struct OffloadConfig {
  Offload what = Offload::kNone;  ///< kOptimizer: master weights and moments
  /// From forward to backward: inputs of recomputed blocks, and attention's outputs, which are then
  /// kept (ParallelConfig::save_attention_outputs).
  bool activations = false;
  OffloadStep step = OffloadStep::kAuto;  ///< where their update runs
  bool pin_memory = true;  ///< page-locked host memory: asynchronous copies at full link speed
  int threads = 0;  ///< threads of the host's optimizer step; 0: this rank's share of the cores
  /// kOptimizer: at most this many bytes of masters and moments stay on the device. Whole units
  /// stay, in the order in which a step needs them.
  int64_t device_bytes = 0;
  int64_t chunk_numel = 16 << 20;  ///< elements per streamed chunk, for a step on the device

  /// Whether state of some units may stay on the device.
  bool shares_device() const { return what == Offload::kOptimizer && device_bytes > 0; }
};

/// Partition of a model into stages, and their schedule.
struct PipelineConfig {
  std::string schedule = "1f1b";  ///< gpipe, 1f1b, zbh1, interleaved
  int chunks = 1;                 ///< interleaved: model chunks per rank
  /// Embedding and head are vocabulary-parallel over all stages; else they lie on the first and the
  /// last stage. Only gpipe and 1f1b.
  bool shared_vocabulary = false;
  /// Cost that balances the stages: "flops" or "parameters"; block_costs overrides it.
  std::string balance = "flops";
  std::vector<double> block_costs;  ///< measured cost of each block, in any unit; replaces balance
};

/// Fields of one layout, named like the programs' flags.
struct ParallelConfig {
  std::string strategy = "single";  ///< single, ddp, zero1, zero2, zero3, fsdp
  PrecisionConfig precision = {};   ///< dtypes of parameters, gradients and collectives
  /// Bucket size: gradients are reduced together once this many bytes are ready.
  int64_t bucket_bytes = 25 << 20;
  bool overlap = true;  ///< false: wait for every collective where it is launched
  /// Coalesces gathers and reductions of neighbouring blocks up to this many bytes of parameters.
  /// 1: each block alone; 0: chosen from the number of ranks.
  int64_t coalesce_bytes = 0;
  /// zero2, fsdp: keep full gradients over the accumulation, reduce once.
  bool reduce_at_boundary = false;
  /// zero3: smaller parameters (in elements) stay unsharded.
  int64_t persistence_threshold = 100'000;
  int prefetch_blocks = 1;  ///< zero3, fsdp: blocks gathered ahead, in both directions
  /// zero3, fsdp: with Fp8::kTensorwise steps gather trained weights of layers in 8 bits as their
  /// codes, a byte each. Not with offloaded state. False: in the parameters' dtype.
  bool fp8_all_gather = true;
  /// fsdp: consecutive blocks form one unit until they hold this many elements; 0: each block is
  /// one.
  int64_t unit_numel = 0;
  bool reshard_after_forward = true;  ///< fsdp: false keeps parameters unsharded until the step
  /// fsdp: data ranks that shard one replica (hybrid sharding); 0: all of them, 1: nothing is
  /// sharded.
  int shard_ranks = 0;
  /// Gradient checkpointing of all blocks: keep each block's input, recompute the block in backward
  /// (Chen et al. 2016).
  bool gradient_checkpointing = false;
  /// Selective checkpointing: increasing indices of the blocks to recompute, never the loss block.
  /// Does not affect how stages are balanced.
  std::vector<int64_t> recomputed_blocks = {};
  /// Decoder blocks keep the outputs of their norms and of the activation function for backward;
  /// otherwise backward recomputes them. No effect on recomputed blocks.
  bool save_norm_outputs = false;
  /// Recomputed decoder blocks keep attention's output and log-sum-exp, so that backward does not
  /// form attention twice. For layers in their fused version, as GPUs run them in 16 bits.
  bool save_attention_outputs = false;
  /// Layers keep no activations of their experts; backward forms them again, bit for bit. No effect
  /// on recomputed blocks.
  bool recompute_experts = false;
  OffloadConfig offload = {};      ///< what lives in host memory
  PipelineConfig pipeline = {};    ///< with a pipeline axis of more than one rank
  bool sequence_parallel = false;  ///< with a tensor axis of more than one rank
  /// How attention reaches the other ranks' tokens, with a context axis of more than one rank.
  ContextAttention context_attention = ContextAttention::kAuto;

  /// Whether decoder blocks that are not recomputed keep these outputs.
  bool saves_norm_outputs() const { return save_norm_outputs && !gradient_checkpointing; }
  /// Whether blocks that are not recomputed form activations of experts again.
  bool recomputes_experts() const { return recompute_experts && !gradient_checkpointing; }
  /// Whether recomputed blocks keep attention's outputs.
  bool saves_attention_outputs() const { return save_attention_outputs || offload.activations; }
  /// Whether backward recomputes the block at this index of the model, the loss block excepted.
  bool recomputes(size_t block) const {
    return gradient_checkpointing ||
           std::ranges::count(recomputed_blocks, static_cast<int64_t>(block)) > 0;
  }
};

/// Names that make_strategy() accepts.
std::vector<std::string> strategy_names();

/// Makes the strategy; the mesh outlives it. The only place that states which combinations are
/// legal: throws Error(kInvalidArgument) for all others.
std::unique_ptr<Strategy> make_strategy(const ParallelConfig& config, const DeviceMesh& mesh);
std::unique_ptr<Strategy> make_strategy(const ParallelConfig&, const DeviceMesh&&) = delete;

}  // namespace tessera
