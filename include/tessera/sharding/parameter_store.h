// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Parameter stores: storage of all units' parameters between uses, and their gathering for blocks.
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

class DecodedParameters;
class GatheredCodes;
class GradientReducer;
struct Messages;

/// Options of a store's tensors.
struct StoreOptions {
  at::ScalarType dtype = at::kFloat;  ///< dtype of the stored tensors
  GradientReducer* wire = nullptr;    ///< gradients: reduces them; outlives the store
  bool overlap = true;                ///< false: wait for each collective where it is launched
  int64_t bucket_bytes = 25 << 20;    ///< full gradients: bucket size of a reduction
  int prefetch_blocks = 1;            ///< gathered parameters: buffers beside the one in use
  bool keep_gathered = false;         ///< gathered parameters: unsharded until the next publish()
  bool host_shards = false;           ///< gathered parameters: shards in host memory
  bool pin_memory = true;             ///< pin host shards
  /// Gradients: most input ids of any rank in the last micro-batch, called in finish(). Null: no
  /// embedding table is reduced in two parts (TwoPartTables).
  std::function<int64_t()> most_rows = nullptr;
};

/// Parameters of a strategy's units, used on one thread. Units are indices into the strategy's
/// list, which outlives the store. Order of calls: adopt() for every unit, finalize(); per use
/// acquire() .. release(); publish() after an update.
class ParameterStore {
 public:
  virtual ~ParameterStore() = default;
  /// Stores this rank's part of the unit's initial values. full_fp32: [layout.numel()] on the
  /// device.
  virtual void adopt(size_t unit, const at::Tensor& full_fp32) = 0;
  /// Assigns storage to every handle.
  virtual void finalize() = 0;

  /// Unshards: until release() the handles hold the full parameters, on the current stream. Units
  /// of codes: codes() holds them, and only with `decodes` the handles their values. Units that
  /// gather codes: without `decodes` codes() alone holds them, else the handles alone.
  virtual void acquire(size_t unit, bool decodes = true) = 0;
  /// Codes of an entry of a unit that has them, at a constant address.
  virtual at::Tensor codes(size_t unit, size_t entry) const = 0;
  /// Scale of these codes: fp32 [], at a constant address that is a multiple of 16 bytes.
  virtual at::Tensor scale(size_t unit, size_t entry) const = 0;
  /// Starts the all-gather of a unit that is needed soon, if a buffer is free. Units of one
  /// gather_group are gathered together. decodes: as acquire() will say.
  virtual void prefetch(size_t unit, bool decodes = true) = 0;
  virtual void release(size_t unit) = 0;  ///< reshards: the handles may be empty afterwards
  /// Ends all uses, released or not: the next acquire() gathers again.
  virtual void drop_uses() {}

  /// This rank's shard of a segment, in the compute dtype or as codes (ParameterUnit::scales), at a
  /// constant address. Its bits change only by updates, as they may be half of a split master.
  virtual at::Tensor owned(size_t unit, size_t segment) const = 0;
  /// Whether owned() is host memory although the device is a GPU (offloaded parameters).
  virtual bool owned_on_host(size_t, size_t) const { return false; }
  /// Makes updated owned parts visible to every rank before the next acquire().
  virtual void publish(size_t unit) = 0;

  /// Whether acquire(), prefetch() and release() only wait for publish(), so that CUDA graphs may
  /// capture the work between them.
  virtual bool records() const { return false; }

  virtual int64_t persistent_bytes() const = 0;     ///< bytes of parameters that live between steps
  virtual int64_t buffer_bytes() const = 0;         ///< bytes of shared buffers
  virtual int64_t host_bytes() const { return 0; }  ///< bytes of shards in host memory
};

/// Unsharded parameters on every rank (DDP, ZeRO-1, ZeRO-2). After an update the owned parts are
/// all-gathered in place, overlapped until the next acquire().
class ResidentParameters : public ParameterStore {
 public:
  /// Gathers over comm; units and comm outlive the store.
  ResidentParameters(const std::vector<ParameterUnit>& units, Communicator& comm,
                     StoreOptions options);
  ~ResidentParameters() override;
  void adopt(size_t unit, const at::Tensor& full_fp32) override;
  void finalize() override;
  void acquire(size_t unit, bool decodes = true) override;
  at::Tensor codes(size_t unit, size_t entry) const override;
  at::Tensor scale(size_t unit, size_t entry) const override;
  void prefetch(size_t, bool = true) override {}
  void release(size_t unit) override;
  void drop_uses() override;
  at::Tensor owned(size_t unit, size_t segment) const override;
  void publish(size_t unit) override;
  bool records() const override;
  int64_t persistent_bytes() const override;
  int64_t buffer_bytes() const override;

 private:
  struct Gather {
    at::Tensor whole, own;  ///< of one segment
  };
  struct Published {
    std::vector<size_t> units;  ///< units whose gather waits for the rest of the message
    size_t trained = 0;         ///< trained ones among them
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
  std::unique_ptr<DecodedParameters> decoded_;
};

/// Sharded parameters (ZeRO-3, FSDP): unsharded only in shared buffers of the blocks in flight.
/// Small parameters (from layout.resident_begin()) stay unsharded. Debug builds fill a released
/// buffer with NaN, which reveals later use.
class GatheredParameters : public ParameterStore {
 public:
  /// Gathers over comm; units and comm outlive the store.
  GatheredParameters(const std::vector<ParameterUnit>& units, Communicator& comm,
                     StoreOptions options);
  ~GatheredParameters() override;
  void adopt(size_t unit, const at::Tensor& full_fp32) override;
  void finalize() override;
  void acquire(size_t unit, bool decodes = true) override;
  at::Tensor codes(size_t unit, size_t entry) const override;
  at::Tensor scale(size_t unit, size_t entry) const override;
  void prefetch(size_t unit, bool decodes = true) override;
  void release(size_t unit) override;
  void drop_uses() override;
  at::Tensor owned(size_t unit, size_t segment) const override;
  void publish(size_t unit) override;
  int64_t persistent_bytes() const override;
  int64_t buffer_bytes() const override;
  bool owned_on_host(size_t unit, size_t segment) const override;
  int64_t host_bytes() const override;

 private:
  enum class Residency { kSharded, kGathering, kUnsharded };
  struct Gather {
    at::Tensor whole, own;  ///< of one segment
  };
  struct State {
    at::Tensor shard;     ///< owned parts of the segments before resident_begin, compact
    at::Tensor resident;  ///< segments from resident_begin on, unsharded
    std::vector<Gather> gathers, resident_gathers;
    std::vector<Gather> code_gathers;  ///< of a unit that gathers codes
    Residency residency = Residency::kSharded;
    bool as_codes = false;  ///< what the buffer holds, of a unit that gathers codes
    int acquired = 0;
    bool begins = false;     ///< no earlier unit needs its buffer in a step
    bool published = false;  ///< other units of its message are not published yet
    Marker fetched;          ///< host shards: the own part has arrived
  };
  void list_gathers(size_t unit);
  bool is_present(size_t unit, bool decodes) const;
  void gather(size_t message, bool decodes);
  void follow_codes(size_t unit) const;
  void begin_delayed();
  void gather_residents();
  bool is_published(size_t message);
  void make_room(size_t unit);
  c10::Stream fetch(size_t unit);
  at::Tensor own_place(size_t unit, size_t segment, bool as_codes) const;
  at::Tensor gathered(size_t unit, bool as_codes) const;
  void wait_for_gather(size_t message);

  const std::vector<ParameterUnit>& units_;
  Communicator& comm_;
  StoreOptions options_;
  std::optional<c10::Stream> from_host_;
  std::vector<State> states_;
  std::unique_ptr<const Messages> messages_;
  std::vector<Work> gathers_;  ///< by message
  std::unique_ptr<BufferSlots> slots_;
  std::vector<std::vector<size_t>> in_slot_;  ///< by slot: units whose values it holds
  std::vector<size_t> published_;             ///< units whose resident segments must be gathered
  std::vector<size_t> delayed_;               ///< published messages that wait for scales
  std::unique_ptr<DecodedParameters> decoded_;
  std::unique_ptr<GatheredCodes> gathered_codes_;
};

}  // namespace tessera
