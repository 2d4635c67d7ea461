// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Where the parameters of all units live between uses, and how they become whole for a block.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/core/device.h"
#include "tessera/sharding/buffer_slots.h"
#include "tessera/sharding/unit.h"

namespace tessera {

class GradientWire;
struct Messages;

/// How a store keeps its tensors.
struct StoreOptions {
  at::ScalarType dtype = at::kFloat;  ///< of the stored tensors
  GradientWire* wire = nullptr;       ///< gradients: how they are summed; outlives the store
  bool overlap = true;                ///< false: wait for each collective where it is launched
  int64_t bucket_bytes = 25 << 20;    ///< full gradients: launch once this much is ready
  int prefetch_blocks = 1;            ///< gathered parameters: buffers beyond the one in use
  bool keep_gathered = false;         ///< gathered parameters: in full until published anew
  bool host_shards = false;           ///< gathered parameters: shards live in host memory
  bool pin_memory = true;             ///< of host shards
  /// Gradients: the most input ids that a rank has in the last micro-batch; asked in finish().
  /// Null: no table is summed in two parts (TwoPartTables).
  std::function<int64_t()> most_rows = nullptr;
};

/// Used by one strategy on one thread. Units are addressed by their index in the strategy's list,
/// which outlives the store. Order of calls: adopt() for every unit, finalize(), then per use
/// acquire() .. release(), and publish() after an update.
class ParameterStore {
 public:
  virtual ~ParameterStore() = default;
  /// Takes what this rank keeps of the unit's initial values: full_fp32 is [layout.numel()] on the
  /// device.
  virtual void adopt(size_t unit, const at::Tensor& full_fp32) = 0;
  /// Gives every handle its storage.
  virtual void finalize() = 0;

  /// From here to release() the handles hold the full parameters, on the current stream.
  virtual void acquire(size_t unit) = 0;
  /// A hint that acquire(unit) comes soon; starts the gather when a buffer is free. Units of one
  /// turn are gathered together.
  virtual void prefetch(size_t unit) = 0;
  virtual void release(size_t unit) = 0;  ///< the handles may be empty from here on
  /// Nobody uses any unit any more, though not all were released: the next acquire() makes them
  /// whole anew.
  virtual void drop_uses() {}

  /// The part of a segment that this rank updates, in compute dtype; its address never changes, nor
  /// do its bits from one update to the next: they may be half of a split master.
  virtual at::Tensor owned(size_t unit, size_t segment) const = 0;
  /// Whether owned() is host memory though the device is a GPU (offloaded parameters).
  virtual bool owned_on_host(size_t, size_t) const { return false; }
  /// The owned parts were updated: makes the change visible to every rank before the next
  /// acquire().
  virtual void publish(size_t unit) = 0;

  /// Whether acquire(), prefetch() and release() only wait for what publish() began: work between
  /// them may be recorded.
  virtual bool records() const { return false; }

  virtual int64_t persistent_bytes() const = 0;     ///< bytes of parameters that live between steps
  virtual int64_t buffer_bytes() const = 0;         ///< bytes of buffers that blocks take turns in
  virtual int64_t host_bytes() const { return 0; }  ///< bytes of shards in host memory
};

/// Full parameters on every rank (DDP, ZeRO-1, ZeRO-2). After an update the owned parts are
/// all-gathered in place, overlapping whatever comes before the next acquire().
class ResidentParameters : public ParameterStore {
 public:
  /// Gathers over comm; units and comm outlive the store.
  ResidentParameters(const std::vector<ParameterUnit>& units, Communicator& comm,
                     StoreOptions options);
  ~ResidentParameters() override;
  void adopt(size_t unit, const at::Tensor& full_fp32) override;
  void finalize() override;
  void acquire(size_t unit) override;
  void prefetch(size_t) override {}
  void release(size_t) override {}
  at::Tensor owned(size_t unit, size_t segment) const override;
  void publish(size_t unit) override;
  bool records() const override { return true; }
  int64_t persistent_bytes() const override;
  int64_t buffer_bytes() const override { return 0; }

 private:
  struct Gather {
    at::Tensor whole, own;  ///< of one segment
  };
  struct Published {
    std::vector<size_t> units;  ///< whose gather waits for the rest of the message
    size_t trained = 0;         ///< of them
    Work gather;
  };
  void gather(size_t message);

  const std::vector<ParameterUnit>& units_;
  Communicator& comm_;
  StoreOptions options_;
  std::vector<at::Tensor> flats_;
  std::unique_ptr<const Messages> messages_;
  std::vector<std::vector<Gather>> parts_;  ///< by unit
  std::vector<Published> published_;        ///< by message
};

/// Each rank keeps its shard; full parameters exist only in the fixed buffers of the blocks in
/// flight (ZeRO-3, FSDP). Small parameters (from layout.resident_begin()) stay in full. In debug
/// builds a released buffer is filled with NaN, so that use outside residency shows.
class GatheredParameters : public ParameterStore {
 public:
  /// Gathers over comm; units and comm outlive the store.
  GatheredParameters(const std::vector<ParameterUnit>& units, Communicator& comm,
                     StoreOptions options);
  ~GatheredParameters() override;
  void adopt(size_t unit, const at::Tensor& full_fp32) override;
  void finalize() override;
  void acquire(size_t unit) override;
  void prefetch(size_t unit) override;
  void release(size_t unit) override;
  void drop_uses() override;
  at::Tensor owned(size_t unit, size_t segment) const override;
  void publish(size_t unit) override;
  int64_t persistent_bytes() const override;
  int64_t buffer_bytes() const override { return slots_ == nullptr ? 0 : slots_->bytes(); }
  bool owned_on_host(size_t unit, size_t segment) const override;
  int64_t host_bytes() const override;

 private:
  enum class Residency { kSharded, kGathering, kUnsharded };
  struct Gather {
    at::Tensor whole, own;  ///< of one segment
  };
  struct State {
    at::Tensor shard;     ///< owned parts of the segments before resident_begin, compact
    at::Tensor resident;  ///< the segments from resident_begin on, in full
    std::vector<Gather> gathers, resident_gathers;
    Residency residency = Residency::kSharded;
    int acquired = 0;
    bool begins = false;     ///< nothing before it needs its buffer in a step
    bool published = false;  ///< others of its message are not yet
    Marker fetched;          ///< host shards: the own part is in its place
  };
  void list_gathers(size_t unit);
  void gather(size_t message);
  void gather_residents();
  bool is_published(size_t message);
  void make_room(size_t unit);
  c10::Stream fetch(size_t unit);
  at::Tensor own_place(size_t unit, size_t segment) const;
  void wait_for_gather(size_t message);

  const std::vector<ParameterUnit>& units_;
  Communicator& comm_;
  StoreOptions options_;
  std::optional<c10::Stream> from_host_;
  std::vector<State> states_;
  std::unique_ptr<const Messages> messages_;
  std::vector<Work> gathers_;  ///< by message
  std::unique_ptr<BufferSlots> slots_;
  std::vector<std::vector<size_t>> in_slot_;  ///< by slot: the units whose values it holds
  std::vector<size_t> published_;             ///< units whose resident segments are to be gathered
};

}  // namespace tessera
