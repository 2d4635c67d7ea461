// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Which strategy, in which precision, with which sizes: everything make_strategy() needs.
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/backends/strategy.h"
#include "tessera/comm/device_mesh.h"

namespace tessera {

/// Dtypes of parameters, gradients and their sums.
struct PrecisionConfig {
  at::ScalarType parameter = at::kFloat;  ///< compute dtype: kFloat, kBFloat16 or kHalf
  /// What backward accumulates into; the parameter dtype unless given.
  std::optional<at::ScalarType> gradient;
  /// what collectives carry; the gradient dtype unless given
  std::optional<at::ScalarType> reduce;

  /// The dtype of accumulated gradients.
  at::ScalarType gradient_dtype() const { return gradient.value_or(parameter); }
  /// The dtype of gradients in collectives.
  at::ScalarType reduce_dtype() const { return reduce.value_or(gradient_dtype()); }
};

/// What lives in host memory.
enum class Offload { kNone, kOptimizer, kOptimizerAndParameters };

/// Where the optimizer's update of offloaded state runs: on the host's cores, or on the device
/// through which the state streams. kAuto: on a GPU what is faster by a measurement in attach().
/// AdamW and Adam give the same bits on both.
enum class OffloadStep { kAuto, kHost, kDevice };

/// What lives in host memory, and how it is updated.
struct OffloadConfig {
  Offload what = Offload::kNone;          ///< kOptimizer: master weights and moments
  OffloadStep step = OffloadStep::kAuto;  ///< where their update runs
  bool pin_memory = true;  ///< page-locked host memory: asynchronous copies at full link speed
  int threads = 0;         ///< of the host's optimizer step; 0: this rank's share of the cores
  /// kOptimizer: bytes of masters and moments that stay on the device all the same, at most. Whole
  /// units keep theirs there, those first that a step needs first.
  int64_t device_bytes = 0;
  int64_t chunk_numel = 16 << 20;  ///< step on the device: elements that stream together

  /// Whether state of some units may stay on the device.
  bool shares_device() const { return what == Offload::kOptimizer && device_bytes > 0; }
};

/// How a model is cut into stages, and their order of work.
struct PipelineConfig {
  std::string schedule = "1f1b";  ///< gpipe, 1f1b, zbh1, interleaved
  int chunks = 1;                 ///< interleaved: pieces of the model on each rank
  /// Embedding and head, with their tables, are cut over all stages, which run them together; else
  /// they lie on the first and the last stage. gpipe and 1f1b.
  bool shared_vocabulary = false;
  /// What stages are balanced by: "flops", "parameters", or measured costs, one per block.
  std::string balance = "flops";
  std::vector<double> block_costs;  ///< one per block, in any unit; then balance is not looked at
};

/// The fields of one layout, named like the programs' flags.
struct ParallelConfig {
  std::string strategy = "single";  ///< single, ddp, zero1, zero2, zero3, fsdp
  PrecisionConfig precision = {};   ///< dtypes of parameters, gradients and collectives
  int64_t bucket_bytes = 25 << 20;  ///< gradients reduced together once this many bytes are ready
  bool overlap = true;              ///< false: wait for every collective where it is launched
  /// Neighbouring blocks are gathered, and their gradients reduced, together until they have this
  /// many bytes of parameters; 1: each block alone, 0: as the number of ranks asks for.
  int64_t message_bytes = 0;
  /// zero2, fsdp: keep full gradients over the accumulation, reduce once.
  bool reduce_at_boundary = false;
  int64_t persistence_threshold = 100'000;  ///< zero3: parameters with fewer elements stay in full
  int prefetch_blocks = 1;                  ///< zero3, fsdp: blocks gathered ahead, each way
  /// fsdp: consecutive blocks are wrapped together until they hold this many elements; 0: each
  /// block alone.
  int64_t unit_numel = 0;
  bool reshard_after_forward = true;  ///< fsdp: false keeps parameters whole until the step
  /// fsdp: ranks of the data axis that share one copy of the model (hybrid sharding replicates it
  /// over the others); 0: all of them, 1: nothing is sharded.
  int shard_ranks = 0;
  /// Keep only every block's input in forward and run the block again in backward (Chen et al.
  /// 2016).
  bool gradient_checkpointing = false;
  /// The same of some blocks only: their places in the model, in increasing order. The others keep
  /// what backward needs. The loss block is never among them. Stages are balanced as without it.
  std::vector<int64_t> recomputed_blocks = {};
  /// Decoder blocks keep the outputs of their norms and of the activation function for backward;
  /// otherwise backward recomputes them. Without effect on blocks that run again.
  bool keep_activations = false;
  OffloadConfig offload = {};      ///< what lives in host memory
  PipelineConfig pipeline = {};    ///< with a pipeline axis of more than one rank
  bool sequence_parallel = false;  ///< with a tensor axis of more than one rank

  /// Whether decoder blocks keep them that do not run again.
  bool keeps_activations() const { return keep_activations && !gradient_checkpointing; }
  /// Whether the block at this place in the model, which is not the loss, runs again in backward.
  bool recomputes(size_t block) const {
    return gradient_checkpointing ||
           std::ranges::count(recomputed_blocks, static_cast<int64_t>(block)) > 0;
  }
};

/// Names that make_strategy() accepts.
std::vector<std::string> strategy_names();

/// The only place that states which combinations are legal; throws Error(kInvalidArgument) for the
/// rest. The mesh outlives the strategy.
std::unique_ptr<Strategy> make_strategy(const ParallelConfig& config, const DeviceMesh& mesh);
std::unique_ptr<Strategy> make_strategy(const ParallelConfig&, const DeviceMesh&&) = delete;

}  // namespace tessera
