// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Dry run: a step of the real strategy on meta tensors, which records memory, operations and work.
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

/// Inputs of a dry run, as for a real one.
struct DryStep {
  ModelSpec model;                              ///< for Strategy::attach()
  ParallelConfig parallel;                      ///< for make_strategy()
  OptimizerFactory optimizer = make_adamw({});  ///< for Strategy::attach()
  MeshExtents mesh;                             ///< ranks along each axis
  MeshCoordinate coordinate;                    ///< the rank that runs
  /// The rank's micro-batches of one step, on any device; only shapes, dtypes and counts are used.
  std::vector<MicroBatch> micro_batches;
  /// Device whose memory is modelled; a GPU adds kernels' workspaces and the allocator's rounding.
  at::DeviceType device = at::kCPU;
  /// Makes a custom strategy on the mesh; empty: make_strategy() with `parallel`.
  std::function<std::unique_ptr<Strategy>(const DeviceMesh&)> strategy = {};
};

/// Live bytes at the peak of a step, by purpose.
struct LedgerMemory {
  std::string phase;  ///< phase of their allocation: "forward", "backward"
  std::string name;   ///< their block, parameter or message
  int64_t bytes = 0;  ///< sum over these tensors
};

/// Peak memory of one rank in a step; tensors only.
struct LedgerPeak {
  int64_t bytes = 0;    ///< peak, persistent tensors included
  int64_t lasting = 0;  ///< part that lives between steps: state, micro-batches, tables of blocks
  int64_t running = 0;  ///< part that the running block needs until it ends
  std::string phase, name;          ///< phase and name of the last allocation
  std::vector<LedgerMemory> parts;  ///< parts of bytes - lasting, `running` included
};

/// Computation and memory traffic of a block in one phase of a step.
struct LedgerWork {
  std::string phase;  ///< "forward"; "backward", including recomputation
  std::string name;   ///< block, or other purpose of the operations
  /// FLOPs of matrix products and convolutions, in tessera's and LibTorch's operations. Causal
  /// attention counts half.
  double flops = 0;
  /// Bytes of tessera's other operations: every operand read once, every result written once.
  double bytes = 0;
};

/// Record of one rank's second step, from which on steps are equal.
struct StepLedger {
  StrategyMemory state;           ///< persistent state by category, as the strategy counts it
  int64_t input_bytes = 0;        ///< micro-batches
  int64_t constant_bytes = 0;     ///< persistent beside state and micro-batches: tables of blocks
  LedgerPeak device, host;        ///< peaks of the step
  int64_t attach_peak_bytes = 0;  ///< on the device, while the model is built
  CommunicationLedger communication;  ///< every operation in order
  std::vector<LedgerWork> work;       ///< by phase and block, in order of their first operations
};

/// Error for models that cannot run dry: a block reads tensor values, or LibTorch lacks an operator
/// for meta tensors. Code kInvalidArgument.
class NotDry : public Error {
 public:
  /// The message names the model, the operator and the block.
  explicit NotDry(const std::string& message) : Error(ErrorCode::kInvalidArgument, message) {}
};

/// Runs two steps of the strategy on one rank of a FakeMesh with meta tensors: attach(), then twice
/// forward_backward(), grad_norm_squared() and optimizer_step(). Throws like attach(), and NotDry.
StepLedger dry_step(const DryStep& step);

}  // namespace tessera
