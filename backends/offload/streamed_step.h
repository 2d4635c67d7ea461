// SPDX-License-Identifier: MIT
#pragma once
// Optimizer step on the device, with state that streams from host memory.
#include <array>
#include <optional>

#include "backends/offload/host_optimizer_state.h"

namespace tessera {

// [Note: streamed step]
// Masters and state of a few million elements at a time go into a slot of a ring on the device, are
// updated there by the ordinary kernels, and return. Each direction and the update have their own
// stream, so three neighbouring chunks overlap. Gradients and 16-bit parameters stay on the device.
// step() only enqueues. complete() makes the compute stream wait for the unit's update, or for the
// return of parameters in host memory. The host's masters are outdated until the storing stream has
// finished; readers wait for it.
class StreamedStep : public HostOptimizerState {
 public:
  using HostOptimizerState::HostOptimizerState;
  ~StreamedStep() override;
  void gradient_ready(size_t) override {}
  void step(const StepScalars& scalars) override;
  void complete(size_t unit) override;
  MasterValues master(size_t unit, size_t segment) const override;
  std::vector<KeptTensor> state(size_t unit, size_t segment, const FlatRange& part) const override;
  at::Tensor step_count() const override;
  void add_memory(StrategyMemory& memory) const override;
  OffloadReport report() override;

 protected:
  // fp32 parameters are updated in place, or stream to and from the host.
  bool keeps_fp32_masters(bool) const override { return false; }
  at::Device update_device() const override { return context_.device; }
  std::vector<at::ScalarType> staging_types(const Unit&) const override { return {}; }
  void start() override;

 private:
  struct Slot {
    at::Tensor master, low_precision;              // undefined if not needed
    std::array<std::vector<at::Tensor>, 2> state;  // of other and of small parameters
    Marker loaded, updated, stored;
  };
  struct Chunk {
    size_t unit = 0;
    FlatRange range;  // in the unit's compact shard: pieces with the same state formats
    size_t kept = 0;  // index of the KeptPieces
    bool last = false;
    std::array<StreamTimer, 2> load, store;  // times of the latest two steps
  };
  struct Progress {
    Marker ready;
    std::array<StreamTimer, 2> stall;
    bool pending = false;  // stepped and not yet completed
  };
  void load(Chunk& chunk, Slot& slot);
  void update(const Chunk& chunk, const Slot& slot);
  void store(Chunk& chunk, Slot& slot);
  // Index of the times of the current step, or else of the last one.
  size_t half() const { return static_cast<size_t>((steps_ + 1) % 2); }
  bool streams(const Unit& unit, const Piece& piece) const;
  const KeptPieces& kept_of(const Chunk& chunk) const {
    return units_[chunk.unit].kept[chunk.kept];
  }
  // The chunk's state on the host, and in a slot.
  std::vector<at::Tensor> state_of(const Chunk& chunk) const;
  std::vector<at::Tensor> state_in(const Slot& slot, const Chunk& chunk,
                                   const FlatRange& part) const;
  int64_t bytes_of_copies(const Chunk& chunk, bool to_device) const;

  std::optional<c10::Stream> load_stream_, update_stream_, store_stream_;
  std::array<Slot, 3> slots_;
  std::vector<Chunk> chunks_;
  std::vector<Progress> progress_;
  Marker stored_;      // everything of the last step is stored
  int64_t steps_ = 0;  // steps begun
  std::array<StreamTimer, 2> step_timer_;
};

}  // namespace tessera
