// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Gradient stores: accumulation of gradients and their reduction over ranks.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/sharding/buffer_slots.h"
#include "tessera/sharding/gradient_buffer.h"
#include "tessera/sharding/gradient_reducer.h"
#include "tessera/sharding/parameter_store.h"
#include "tessera/sharding/unit.h"

namespace tessera {

class DeferredEmbeddingRows;
class TwoPartTables;

/// Gradients of a strategy's units. Order of calls per step: begin_step(); per micro-batch and unit
/// before_backward() and after_backward(); finish(). No call names a frozen unit.
class GradientStore {
 public:
  virtual ~GradientStore() = default;
  /// Sets a callback: fn(unit) runs once a step, when owned() of the unit holds the step's sum on
  /// the current stream. It runs as early as possible without waiting, at the latest in finish().
  void on_reduced(std::function<void(size_t)> fn) { on_reduced_ = std::move(fn); }
  virtual void begin_step() = 0;  ///< first call of a step
  /// Replaces begin_step() after finish(): the step accumulates into owned(). Replicated gradients
  /// are counted once. Throws Error(kInvalidArgument) in stores without support.
  virtual void continue_step();
  /// Until after_backward() every handle's .grad is defined: zero (perhaps lazily, see
  /// GradientBuffer) or a partial sum.
  virtual void before_backward(size_t unit) = 0;
  /// The unit's gradient of this micro-batch is complete for one of its uses.
  virtual void after_backward(size_t unit, bool last_micro_batch) = 0;
  /// Replaces a last micro-batch before finish(), when no backward pass follows. Throws like
  /// continue_step().
  virtual void complete_all();
  ///@{
  /// For CUDA graphs. records(): whether before_backward(), and after_backward() of all but the
  /// last micro-batch, do the same device-only work each time. begun(): whether backward has
  /// accumulated in this step; set_begun() sets that without work. settle(): zeroes gradients not
  /// written in this step.
  virtual bool records() const { return false; }
  virtual bool begun() const { return false; }
  virtual void set_begun(bool) {}
  virtual void settle() {}
  ///@}
  /// Receiver of rows for gradients whose reduction has begun (BlockContext::deferred_rows). Null:
  /// no reduction begins before a gradient's last use.
  virtual std::shared_ptr<DeferredEmbeddingRows> deferred_rows() const { return nullptr; }
  /// Completes the reductions: on return (current stream) owned() holds the sum over micro-batches
  /// and ranks.
  virtual void finish() = 0;
  /// Abandons a step: waits for pending reductions and drops them.
  virtual void drop_step() = 0;
  virtual at::Tensor owned(size_t unit, size_t segment) const = 0;  ///< constant address
  virtual int64_t persistent_bytes() const = 0;  ///< bytes of gradients that live between steps
  virtual int64_t buffer_bytes() const = 0;      ///< bytes of shared buffers

 protected:
  /// Calls on_reduced()'s callback; for derived stores.
  void reduced(size_t unit) const {
    if (on_reduced_) on_reduced_(unit);
  }
  bool reports_reductions() const {
    return on_reduced_ != nullptr;
  }  ///< whether on_reduced() was given a callback

 private:
  std::function<void(size_t)> on_reduced_;
};

/// Full gradients that live through the step, reduced in buckets during the last micro-batch's
/// backward: by all-reduce with one shard (DDP), else by reduce-scatter in place (ZeRO-1).
class FullGradients : public GradientStore {
 public:
  /// Reduces over comm; units and comm outlive the store.
  FullGradients(const std::vector<ParameterUnit>& units, Communicator& comm, StoreOptions options);
  ~FullGradients() override;
  void begin_step() override;
  void continue_step() override;
  void before_backward(size_t unit) override;
  void after_backward(size_t unit, bool last_micro_batch) override;
  void complete_all() override;
  bool records() const override { return comm_.size() == 1; }
  bool begun() const override { return cleared_; }
  void set_begun(bool begun) override;
  void settle() override;
  void finish() override;
  void drop_step() override;
  std::shared_ptr<DeferredEmbeddingRows> deferred_rows() const override;
  at::Tensor owned(size_t unit, size_t segment) const override;
  int64_t persistent_bytes() const override;
  int64_t buffer_bytes() const override { return 0; }

 private:
  void complete(size_t unit);
  Reduction reduce(const std::vector<size_t>& units) const;
  void launch_bucket();

  const std::vector<ParameterUnit>& units_;
  Communicator& comm_;
  StoreOptions options_;
  std::vector<at::Tensor> flats_;
  std::vector<std::vector<GradientReducer::Part>> parts_;  ///< by unit: parts to reduce
  std::vector<std::unique_ptr<GradientBuffer>> buffers_;   ///< null: frozen
  std::vector<at::Tensor> to_clear_;                       ///< tensors of all buffers
  std::vector<int> uses_left_;
  bool cleared_ = false;        ///< whether to_clear_ was zeroed in this step
  std::vector<bool> begun_;     ///< whether backward has accumulated, by unit
  std::vector<size_t> bucket_;  ///< units with complete gradients that are not yet being reduced
  int64_t bucket_bytes_ = 0;
  struct Bucket {
    Reduction reduction;
    std::vector<size_t> units;
  };
  void wait(Bucket& bucket);
  std::vector<Bucket> pending_;
  std::unique_ptr<TwoPartTables> tables_;
};

/// Sharded gradients (ZeRO-2, ZeRO-3). In every micro-batch a unit's full gradient lives in a
/// shared buffer from its backward until its reduce-scatter, which it shares with the other units
/// of its gather_group. The sum is added to the shard in the gradients' dtype.
class ShardedGradients : public GradientStore {
 public:
  /// Reduces over comm; units and comm outlive the store.
  ShardedGradients(const std::vector<ParameterUnit>& units, Communicator& comm,
                   StoreOptions options);
  ~ShardedGradients() override;
  void begin_step() override;
  void continue_step() override;
  void before_backward(size_t unit) override;
  void after_backward(size_t unit, bool last_micro_batch) override;
  void complete_all() override;
  void finish() override;
  void drop_step() override;
  std::shared_ptr<DeferredEmbeddingRows> deferred_rows() const override;
  at::Tensor owned(size_t unit, size_t segment) const override;
  int64_t persistent_bytes() const override;
  int64_t buffer_bytes() const override { return slots_->bytes(); }

 private:
  struct Slot;
  struct State {
    at::Tensor shard;          ///< compact
    int uses_done = 0;         ///< in this micro-batch
    bool has_partial = false;  ///< shard holds sums of earlier micro-batches of this step
    int uses_left = 0;         ///< in the last micro-batch
    std::vector<GradientReducer::Part> parts = {};  ///< parts to reduce
  };
  void wait_for_slot(size_t slot);
  void complete(size_t unit, bool completes);
  void reduce_ready(Slot& slot);

  const std::vector<ParameterUnit>& units_;
  Communicator& comm_;
  StoreOptions options_;
  std::vector<State> states_;
  std::unique_ptr<BufferSlots> slots_;
  std::vector<std::unique_ptr<GradientBuffer>> buffers_;  ///< null: frozen
  struct Part {
    size_t unit = 0;
    bool completes = false;  ///< whether it completes the unit's step
  };
  struct Pending {
    std::vector<Part> parts;
    Reduction sum;
  };
  struct Slot {
    /// of units of one gather_group, in order of their start
    std::vector<Pending> pending;
    /// Units of one gather_group whose reduction waits for the rest of the message.
    std::vector<Part> ready;
    std::set<size_t> filling;  ///< units with uses left in this micro-batch
  };
  std::vector<Slot> pending_;  ///< by slot
  std::unique_ptr<const Messages> messages_;
  std::unique_ptr<TwoPartTables> tables_;
};

}  // namespace tessera
