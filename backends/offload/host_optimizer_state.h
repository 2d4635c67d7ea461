// SPDX-License-Identifier: MIT
#pragma once
// Base of both offloaded steps: master weights and optimizer state of a rank's shards in host
// memory.
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "backends/offload/host_share.h"
#include "lib/core/host_threads.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/backends/unit_optimizer.h"
#include "tessera/core/device.h"

namespace tessera {

// A contiguous part of a rank's shard of a unit with equal treatment.
struct Piece {
  FlatRange range;  // in the rank's compact shard of the unit
  bool weight_decay = true;
  bool small = false;  // see StateRules
  UpdateRule rule;
  int64_t begin = 0;    // first element in the unit's flat buffer
  at::Tensor gradient;  // destination of the gradient's reduction
  at::Tensor target;    // the parameter store's shard
  bool target_on_host = false;
};

// Neighbouring pieces with the same state formats, and their state.
struct KeptPieces {
  FlatRange range;  // in the rank's compact shard of the unit
  bool small = false;
  std::vector<at::Tensor> state;

  // State of a part that starts with a block.
  std::vector<at::Tensor> state_of(const std::vector<StateFormat>& formats,
                                   const FlatRange& part) const;
};

// Offloaded optimizer; derived classes move the state to the update's location.
class HostOptimizerState : public UnitOptimizer {
 public:
  HostOptimizerState(const UnitOptimizerContext& context, const ParallelConfig& config,
                     Communicator& world, const HostShare& share);

  void adopt(size_t unit, const at::Tensor& full_fp32) override;
  void prepare(ParameterStore& parameters, GradientStore& gradients,
               const OptimizerFactory& factory) override;
  MasterValues master(size_t unit, size_t segment) const override;
  std::vector<KeptTensor> state(size_t unit, size_t segment, const FlatRange& part) const override;
  at::Tensor step_count() const override { return optimizer_->step_count(); }
  void add_memory(StrategyMemory& memory) const override;

 protected:
  struct Unit {
    FlatRange whole;               // {0, elements of the compact shard}
    std::vector<Piece> pieces;     // in order of the compact shard
    at::Tensor master;             // fp32; undefined if the targets themselves are the masters
    std::vector<KeptPieces> kept;  // in order of the compact shard
    std::vector<at::Tensor> staging;

    const KeptPieces& kept_at(int64_t element) const;
  };
  // Whether masters are separate from the targets; always in 16-bit training.
  virtual bool keeps_fp32_masters(bool all_targets_on_host) const = 0;
  virtual at::Device update_device() const = 0;
  // Dtypes of the unit's host staging buffers, each as long as the shard.
  virtual std::vector<at::ScalarType> staging_types(const Unit& unit) const = 0;
  // Called after all host memory is allocated.
  virtual void start() = 0;

  bool is_16_bit() const { return context_.parameter_dtype != at::kFloat; }
  const std::vector<StateFormat>& formats(bool small) const { return formats_[small ? 1 : 0]; }

  const UnitOptimizerContext context_;
  const ParallelConfig config_;
  HostThreads threads_;
  std::vector<int> cores_;
  std::vector<Unit> units_;
  ParameterStore* parameters_ = nullptr;
  std::unique_ptr<Optimizer> optimizer_;

 private:
  static std::vector<KeptPieces> kept_of(const std::vector<Piece>& pieces);

  at::Tensor allocate(int64_t numel, at::ScalarType dtype, bool crosses_link, bool is_state);
  std::vector<Piece> pieces_of(size_t unit, const GradientStore& gradients) const;

  Communicator& world_;
  int64_t host_;
  int64_t host_bytes_ = 0, state_bytes_ = 0, pinned_bytes_ = 0;
  std::array<std::vector<StateFormat>, 2> formats_;  // formats of other and of small parameters
};

}  // namespace tessera
