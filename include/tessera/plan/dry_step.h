// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// A step of the real strategy without memory, data or other ranks: what it would hold and call.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tessera/backends/strategy.h"
#include "tessera/comm/communication_ledger.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/core/error.h"
#include "tessera/core/micro_batch.h"
#include "tessera/model/model_spec.h"
#include "tessera/optim/adamw.h"

namespace tessera {

/// What to run dry: as a run would be given it.
struct DryStep {
  ModelSpec model;                              ///< as for Strategy::attach()
  ParallelConfig parallel;                      ///< for make_strategy()
  OptimizerFactory optimizer = make_adamw({});  ///< as for Strategy::attach()
  MeshExtents mesh;                             ///< ranks along each axis
  MeshCoordinate coordinate;                    ///< the rank that runs
  /// The rank's, of one step; on any device. Shapes, dtypes and counts are looked at, no values.
  std::vector<MicroBatch> micro_batches;
  /// Whose memory is modelled: what the kernels of a GPU take beside their results counts, and the
  /// allocator's rounding.
  at::DeviceType device = at::kCPU;
  /// Makes a strategy of one's own on the mesh; empty: make_strategy() of `parallel`.
  std::function<std::unique_ptr<Strategy>(const DeviceMesh&)> strategy = {};
};

/// Bytes that were allocated for one purpose and are live at the peak of a step.
struct LedgerMemory {
  std::string phase;  ///< of the run, when they were allocated: "forward", "backward"
  std::string name;   ///< the block, parameter or message they were allocated for
  int64_t bytes = 0;  ///< of all such tensors
};

/// Of one rank's memory in a step: tensors alone.
struct LedgerPeak {
  int64_t bytes = 0;        ///< the most at one time, with all that lasts
  int64_t lasting = 0;      ///< of them live between steps: state, micro-batches, tables of blocks
  int64_t running = 0;      ///< of them what the block at work needs until it is done
  std::string phase, name;  ///< of what was allocated last
  std::vector<LedgerMemory> parts;  ///< of bytes - lasting, with `running`
};

/// What the operations of a block compute and move in one phase of a step.
struct LedgerWork {
  std::string phase;  ///< "forward"; "backward", with blocks that run again there
  std::string name;   ///< the block, or what else the operations are for
  /// Of matrix products and convolutions: of tessera's operations and LibTorch's. Causal attention
  /// counts the half that is computed.
  double flops = 0;
  /// Of tessera's other operations: every operand read once, every result written once.
  double bytes = 0;
};

/// What one rank allocates and calls in a step once it repeats itself (the second).
struct StepLedger {
  StrategyMemory state;           ///< as the strategy says it: what lasts, by category
  int64_t input_bytes = 0;        ///< of the micro-batches
  int64_t constant_bytes = 0;     ///< that last beside state and micro-batches: tables of blocks
  LedgerPeak device, host;        ///< of the step
  int64_t attach_peak_bytes = 0;  ///< on the device, while the model is built
  CommunicationLedger communication;  ///< every operation in order
  std::vector<LedgerWork> work;       ///< by phase and block, in the order of their first operations
};

/// What cannot run without memory: a block that reads values of tensors, or an operator that
/// LibTorch does not have for meta tensors. Names both. Code kInvalidArgument.
class NotDry : public Error {
 public:
  /// The message names the model, the operator and the block.
  explicit NotDry(const std::string& message) : Error(ErrorCode::kInvalidArgument, message) {}
};

/// Runs two steps of the strategy on one rank of a FakeMesh, with tensors without memory (meta):
/// attach(), then forward_backward(), grad_norm_squared() and optimizer_step() twice. Throws what
/// attach() throws, and NotDry.
StepLedger dry_step(const DryStep& step);

}  // namespace tessera
