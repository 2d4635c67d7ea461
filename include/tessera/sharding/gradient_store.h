// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Where backward accumulates, and how the sums over ranks are made.
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
#include "tessera/sharding/gradient_wire.h"
#include "tessera/sharding/parameter_store.h"
#include "tessera/sharding/unit.h"

namespace tessera {

class LateRows;
class TwoPartTables;

/// Order of calls per step: begin_step(), then per micro-batch and unit before_backward() and
/// after_backward(), then finish(). Frozen units have no gradient: they are in the list, but no
/// call names them.
class GradientStore {
 public:
  virtual ~GradientStore() = default;
  /// fn(unit) is called once a step, when on the current stream owned() of the unit holds the
  /// step's sum: as early as that costs no waiting, at the latest in finish().
  void on_reduced(std::function<void(size_t)> fn) { on_reduced_ = std::move(fn); }
  virtual void begin_step() = 0;  ///< the first call of a step
  /// In place of begin_step(), after finish(): what the step then computes is added to owned().
  /// What ranks hold beside the owned parts, or all of them hold alike, counts once. Throws
  /// Error(kInvalidArgument) where a store cannot.
  virtual void continue_step();
  /// From here to after_backward() every handle's .grad is defined, zero (or blank: GradientBuffer)
  /// or holding partial sums.
  virtual void before_backward(size_t unit) = 0;
  /// The unit's gradient of this micro-batch is complete for one of its uses.
  virtual void after_backward(size_t unit, bool last_micro_batch) = 0;
  /// In place of a last micro-batch, before finish(): no backward pass follows. Throws as
  /// continue_step() does.
  virtual void complete_all();
  ///@{
  /// For work that is recorded and run again. Whether before_backward(), and after_backward() of
  /// all but the last micro-batch, work on this device alone, and always do the same; whether
  /// backward has added something in this step; what is said of that without any work; and that
  /// whatever nobody has written in this step holds zeros.
  virtual bool records() const { return false; }
  virtual bool begun() const { return false; }
  virtual void set_begun(bool) {}
  virtual void settle() {}
  ///@}
  /// Where backward hands rows of gradients that are on their way to other ranks already
  /// (BlockContext::late_rows). Null: no gradient is, before its last use.
  virtual std::shared_ptr<LateRows> late_rows() const { return nullptr; }
  /// On return (current stream) owned() holds the sum over micro-batches and ranks.
  virtual void finish() = 0;
  /// In place of the rest of a step: waits for the sums under way and forgets
  /// them.
  virtual void drop_step() = 0;
  virtual at::Tensor owned(size_t unit, size_t segment) const = 0;  ///< its address never changes
  virtual int64_t persistent_bytes() const = 0;  ///< bytes of gradients that live between steps
  virtual int64_t buffer_bytes() const = 0;      ///< bytes of buffers that blocks take turns in

 protected:
  /// Calls the function that on_reduced() was given; for derived stores.
  void reduced(size_t unit) const {
    if (on_reduced_) on_reduced_(unit);
  }
  bool reports_reductions() const {
    return on_reduced_ != nullptr;
  }  ///< whether on_reduced() was given a function

 private:
  std::function<void(size_t)> on_reduced_;
};

/// A full gradient per unit that lives through the step; reduced in buckets as the last
/// micro-batch's backward completes units: an all-reduce when the layout has one shard (DDP), else
/// a reduce-scatter in place (ZeRO-1).
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
  std::shared_ptr<LateRows> late_rows() const override;
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
  std::vector<std::vector<GradientWire::Part>> parts_;    ///< by unit: what a reduction takes
  std::vector<std::unique_ptr<GradientBuffer>> buffers_;  ///< null: frozen
  std::vector<at::Tensor> to_clear_;                      ///< of all buffers
  std::vector<int> uses_left_;
  bool cleared_ = false;        ///< in this step
  std::vector<bool> begun_;     ///< likewise
  std::vector<size_t> bucket_;  ///< units whose gradients are complete but not yet on the wire
  int64_t bucket_bytes_ = 0;
  struct Bucket {
    Reduction reduction;
    std::vector<size_t> units;
  };
  void wait(Bucket& bucket);
  std::vector<Bucket> pending_;
  std::unique_ptr<TwoPartTables> tables_;
};

/// Each rank keeps its shard; a unit's full gradient lives in a fixed buffer from its backward
/// until it is reduce-scattered, every micro-batch (ZeRO-2, ZeRO-3), together with the other units
/// of its turn, and its part of the sum added to the shard in the gradients' dtype.
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
  std::shared_ptr<LateRows> late_rows() const override;
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
    std::vector<GradientWire::Part> parts = {};  ///< what a reduction takes
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
    bool completes = false;  ///< the unit's step
  };
  struct Pending {
    std::vector<Part> parts;
    Reduction sum;
  };
  struct Slot {
    /// of units of one turn, in the order in which they were started
    std::vector<Pending> pending;
    /// Units of one turn whose sum waits for the rest of the message.
    std::vector<Part> ready;
    std::set<size_t> filling;  ///< units whose uses in this micro-batch are not all done
  };
  std::vector<Slot> pending_;  ///< by slot
  std::unique_ptr<const Messages> messages_;
  std::unique_ptr<TwoPartTables> tables_;
};

}  // namespace tessera
