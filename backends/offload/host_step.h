// SPDX-License-Identifier: MIT
#pragma once
// Optimizer step on the host's cores.
#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "backends/offload/host_optimizer_state.h"
#include "tessera/core/async_scalars.h"

namespace tessera {

// [Note: one offloaded step]
// Gradients are copied to the host on a side stream as they are reduced, during backward. step()
// records an event on the compute stream, starts the copy of the step's scalars and wakes the
// worker. The worker updates unit after unit, in the order of forward, on all host threads, without
// barriers between units. Each unit's new values are sent to the device on another side stream when
// its last part is done. complete() waits on the host until that copy is enqueued, and on the
// compute stream until it is done; then it publishes the unit. So later units' updates overlap the
// next step's data loading and forward of earlier units.
//
// A unit's device gradient may be overwritten after its complete(), its staging buffer after its
// copy to the device. complete() makes the compute stream wait for that copy, and gradient_ready()
// makes the copying stream wait for the compute stream.
class HostStep : public HostOptimizerState {
 public:
  using HostOptimizerState::HostOptimizerState;
  ~HostStep() override;
  void gradient_ready(size_t unit) override;
  void gradients_reopened() override;
  void step(const StepScalars& scalars) override;
  void complete(size_t unit) override;
  at::Tensor step_count() const override;
  OffloadReport report() override;

 protected:
  // fp32 parameters on the device need a host copy; those on the host are updated in place.
  bool keeps_fp32_masters(bool all_targets_on_host) const override { return !all_targets_on_host; }
  at::Device update_device() const override { return at::kCPU; }
  std::vector<at::ScalarType> staging_types(const Unit& unit) const override;
  void start() override;

 private:
  struct Times {
    StreamTimer to_host, to_device, stall;
  };
  struct Traffic {
    Marker gradient, parameters;  // ends of the copies
    std::array<Times, 2> times;   // times of the latest two steps
    int64_t bytes_to_host = 0, bytes_to_device = 0;
    std::vector<int64_t> first_chunk;  // by piece, and the total at the end
    bool pending = false;              // stepped and not yet completed
    bool fresh = false;                // staging holds the gradient
    bool sent = false;                 // its values are being sent; guarded by mutex_
  };
  void step_without_memory();  // for meta tensors
  void work();
  void run_step();
  // waits for the scalars; returns whether the step is skipped
  bool begin_step(AsyncScalars& scalars);
  // Waits until the worker has finished the last step.
  void wait_for_worker(std::unique_lock<std::mutex>& lock) const;
  void update();
  void update_chunk(size_t unit, int64_t chunk);
  void send(size_t unit);
  void say_sent(size_t unit);
  at::Tensor low_precision(const Unit& unit) const;
  Times& times_of(size_t unit, int64_t step) {
    return traffic_[unit].times[static_cast<size_t>(step % 2)];
  }

  std::optional<c10::Stream> to_host_, to_device_;
  std::vector<Traffic> traffic_;
  std::vector<int64_t> first_chunk_;              // by unit, and the total at the end
  std::unique_ptr<std::atomic<int64_t>[]> left_;  // by unit: remaining chunks of the step
  Marker step_begin_;                             // on the compute stream

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::optional<AsyncScalars> scalars_;  // scalars of the current step
  bool stop_ = false;
  std::exception_ptr error_;
  int64_t steps_ = 0;  // steps begun
  std::array<double, 2> step_s_{}, update_s_{};
  std::thread worker_;
};

}  // namespace tessera
