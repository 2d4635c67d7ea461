// SPDX-License-Identifier: MIT
#pragma once
// What both ways of stepping share: master weights and optimizer state of a rank's shards in host
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

// A contiguous part of a rank's share of a unit with equal treatment.
struct Piece {
  FlatRange range;  // in the rank's compact shard of the unit
  bool weight_decay = true;
  bool small = false;  // see StateRules
  UpdateRule rule;
  int64_t begin = 0;    // of its first element in the unit's flat buffer
  at::Tensor gradient;  // what the gradient store reduces into
  at::Tensor target;    // what the parameter store owns
  bool target_on_host = false;
};

// Neighbouring pieces that are kept in the same formats, and what the optimizer keeps for them.
struct KeptPieces {
  FlatRange range;  // in the rank's compact shard of the unit
  bool small = false;
  std::vector<at::Tensor> state;

  // Of a part that begins with a block.
  std::vector<at::Tensor> state_of(const std::vector<StateFormat>& formats,
                                   const FlatRange& part) const;
};

// Derived classes move the state to where the update runs.
class HostHome : public UnitOptimizer {
 public:
  HostHome(const UnitOptimizerContext& context, const ParallelConfig& config, Communicator& world,
           const HostShare& share);

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
    std::vector<Piece> pieces;     // in its order
    at::Tensor master;             // fp32; undefined where the targets themselves are the masters
    std::vector<KeptPieces> kept;  // in its order
    std::vector<at::Tensor> staging;

    const KeptPieces& kept_at(int64_t element) const;
  };
  // Whether the masters are apart from the targets; they always are in 16-bit training.
  virtual bool keeps_fp32_masters(bool all_targets_on_host) const = 0;
  virtual at::Device update_device() const = 0;
  // Dtypes of the unit's host buffers for what crosses the link, each as long as the shard.
  virtual std::vector<at::ScalarType> staging_types(const Unit& unit) const = 0;
  // All memory of the host is there.
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
  std::array<std::vector<StateFormat>, 2> formats_;  // of others, of small parameters
};

}  // namespace tessera
