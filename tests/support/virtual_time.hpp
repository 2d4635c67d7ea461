// SPDX-License-Identifier: MIT
#pragma once
// In-process ranks on virtual clocks: blocks state their duration, messages take latency and
// bandwidth. A rank's clock advances when it computes, or waits for a message that arrives later.
// No real time passes, so results do not depend on the host.
#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/support/forwarding_communicator.hpp"

namespace tessera::test {

// A link between ranks. Seconds of a collective over n ranks: latency n + bytes / bandwidth in the
// ring model. Seconds of a message: latency + bytes / bandwidth.
struct VirtualLink {
  double latency = 0, bytes_per_second = 1e30;
};

// Clock of one rank, used by its thread; must outlive its communicators.
class VirtualClock {
 public:
  explicit VirtualClock(const VirtualLink& link) : link(link) {}
  void pass(double seconds) { now_ += seconds; }
  void reach(double time) { now_ = std::max(now_, time); }
  double now() const { return now_; }
  const VirtualLink link;

 private:
  double now_ = 0;
};

// A collective or message: its start on this rank, duration and end.
class VirtualOperation {
 public:
  VirtualOperation(VirtualClock& clock, double takes, Work work, at::Tensor begin, Work begun)
      : clock_(clock),
        takes_(takes),
        work_(std::move(work)),
        begin_(std::move(begin)),
        begun_(std::move(begun)) {}
  // Operations of one communicator are serialised on its link.
  void follow(std::shared_ptr<VirtualOperation> before) { before_ = std::move(before); }
  double end() {
    if (!end_) {
      const std::shared_ptr<VirtualOperation> before = std::exchange(before_, nullptr);
      const double free = before ? before->end() : 0;
      work_.wait();
      begun_.wait();
      end_ = std::max(begin_.item<double>(), free) + takes_;
    }
    return *end_;
  }
  void wait() { clock_.reach(end()); }

 private:
  VirtualClock& clock_;
  double takes_;
  Work work_;
  at::Tensor begin_;  // of the last rank; valid when begun_ completes
  Work begun_;
  std::shared_ptr<VirtualOperation> before_;
  std::optional<double> end_;
};

// Delays another communicator's operations. Splits share the clock but have their own links.
class VirtualCommunicator final : public ForwardingCommunicator {
 public:
  // inner: as for ForwardingCommunicator.
  template <typename Inner>
  VirtualCommunicator(Inner&& inner, VirtualClock& clock)
      : ForwardingCommunicator(std::forward<Inner>(inner)), clock_(&clock) {}

  // Starts operations one by one, which changes no result; of collectives only the first pays
  // latency.
  Work start(std::span<const Operation> operations) override {
    std::vector<Work> works;
    bool joins = false;
    for (const Operation& each : operations) {
      works.push_back(each.is_message() ? message(each) : collective(each, joins));
      joins = true;
    }
    return works.size() == 1 ? works.front() : Work(std::make_shared<Joined>(std::move(works)));
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<VirtualCommunicator>(inner_->split(color, key), *clock_);
  }

 private:
  class Waiting final : public Work::Impl {
   public:
    explicit Waiting(std::shared_ptr<VirtualOperation> operation)
        : operation_(std::move(operation)) {}
    void wait() override { operation_->wait(); }

   private:
    std::shared_ptr<VirtualOperation> operation_;
  };
  class Joined final : public Work::Impl {
   public:
    explicit Joined(std::vector<Work> works) : works_(std::move(works)) {}
    void wait() override {
      for (Work& work : works_) work.wait();
    }

   private:
    std::vector<Work> works_;
  };

  double seconds_of(double bytes) const { return bytes / clock_->link.bytes_per_second; }

  Work given(std::shared_ptr<VirtualOperation> operation) {
    return Work(std::make_shared<Waiting>(std::move(operation)));
  }

  // Sends the arrival time to the receiver.
  Work message(const Operation& o) {
    at::Tensor arrives = at::empty({1}, at::kDouble);
    Work begun;
    if (o.kind == OperationKind::kSend) {
      const double takes = clock_->link.latency + seconds_of(double(o.input.nbytes()));
      sent_until_ = std::max(sent_until_, clock_->now()) + takes;
      arrives.fill_(sent_until_);
      inner_->send(arrives, o.peer);
    } else {
      begun = inner_->recv(arrives, o.peer);
    }
    return given(std::make_shared<VirtualOperation>(*clock_, 0, inner_->start({&o, 1}), arrives,
                                                    std::move(begun)));
  }

  // A collective begins when its last rank has called it.
  Work collective(const Operation& o, bool joins) {
    if (size() == 1) return inner_->start({&o, 1});
    const at::Tensor begin = at::full({1}, clock_->now(), at::kDouble);
    const int64_t before = bytes_sent();
    Work work = inner_->start({&o, 1});
    const double latency = joins ? 0 : clock_->link.latency * size();
    const double takes = latency + seconds_of(double(bytes_sent() - before));
    auto operation = std::make_shared<VirtualOperation>(*clock_, takes, std::move(work), begin,
                                                        inner_->all_reduce(begin, ReduceOp::kMax));
    operation->follow(last_);
    last_ = operation;
    return given(std::move(operation));
  }

  VirtualClock* clock_;
  std::shared_ptr<VirtualOperation> last_;
  double sent_until_ = 0;
};

}  // namespace tessera::test
