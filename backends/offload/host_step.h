// SPDX-License-Identifier: MIT
#pragma once
// The optimizer's step on the host's cores.
#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "backends/offload/host_home.h"
#include "tessera/core/late_values.h"

namespace tessera {

// [Note: one offloaded step]
// Gradients leave the device on a side stream as they are reduced, during backward. step() records
// where the compute stream is, starts the copy of the step's scalars and wakes the worker, which
// reads them, updates unit after unit in the order of forward on all host threads, which do not
// wait for each other between units, and sends each unit's new values to the device on another side
// stream as its last part is updated. complete() waits on the host until that copy is enqueued, and
// on the compute stream until it is done; then it publishes the unit. The update of later units so
// overlaps the next step's data loading and forward of earlier ones.
//
// A unit's gradient on the device may be overwritten after its complete(), a unit's staging buffer
// after its copy to the device, for which complete() made the compute stream wait: gradient_ready()
// makes the copying stream wait for the compute stream.
class HostStep : public HostHome {
 public:
  using HostHome::HostHome;
  ~HostStep() override;
  void gradient_ready(size_t unit) override;
  void gradients_reopened() override;
  void step(const StepScalars& scalars) override;
  void complete(size_t unit) override;
  at::Tensor step_count() const override;
  OffloadReport report() override;

 protected:
  // fp32 parameters on the device need a copy here; those on the host are updated in place.
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
    std::array<Times, 2> times;   // of the latest two steps
    int64_t bytes_to_host = 0, bytes_to_device = 0;
    std::vector<int64_t> first_chunk;  // by piece, and their number at the end
    bool pending = false;              // stepped and not yet completed
    bool fresh = false;                // staging holds the gradient
    bool sent = false;                 // its values are on their way; under mutex_
  };
  void step_without_memory();  // of meta tensors
  void work();
  void run_step();
  bool begin_step(LateValues& scalars);  // waits for them; whether the step is skipped
  // Until the worker has done the last step.
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
  std::vector<int64_t> first_chunk_;              // by unit, and their number at the end
  std::unique_ptr<std::atomic<int64_t>[]> left_;  // by unit: chunks of the step to do
  Marker step_begin_;                             // on the compute stream

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::optional<LateValues> scalars_;  // of the step to do
  bool stop_ = false;
  std::exception_ptr error_;
  int64_t steps_ = 0;  // begun
  std::array<double, 2> step_s_{}, update_s_{};
  std::thread worker_;
};

}  // namespace tessera
