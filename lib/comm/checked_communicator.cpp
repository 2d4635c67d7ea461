// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include "lib/comm/communicator_base.h"
#include "tessera/comm/checked.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr int64_t kSplit = -1;  // stands for the operation kind of split()

class CheckedCommunicator final : public Communicator {
 public:
  explicit CheckedCommunicator(std::unique_ptr<Communicator> inner)
      : inner_(std::move(inner)), base_(dynamic_cast<CommunicatorBase*>(inner_.get())) {
    if (base_ != nullptr) place_ = base_->log()->join(base_->name() + " checked", rank(), size());
  }
  ~CheckedCommunicator() override {
    if (base_ != nullptr) base_->log()->leave(place_);
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  at::Device device() const override { return inner_->device(); }
  std::string transport() const override { return inner_->transport(); }
  int64_t bytes_sent() const override { return inner_->bytes_sent() - own_bytes_; }
  void abort(const std::string& reason) override { inner_->abort(reason); }

  // Checks each operation, then starts all of them together.
  Work start(std::span<const Operation> operations) override {
    for (const Operation& each : operations) {
      if (each.is_message()) continue;
      const bool has_root = each.kind == OperationKind::kBroadcast;
      compare(static_cast<int64_t>(each.kind), describe(each),
              has_root ? each.peer : static_cast<int64_t>(each.reduce));
      if (!each.input_counts.empty()) compare_counts(each);
    }
    return inner_->start(operations);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    compare(kSplit, {.operation = "split"}, 0);
    return check_collectives(inner_->split(color, key));
  }

 private:
  // Gathers `numbers` of every rank: int64 [ranks, n], on the host.
  at::Tensor gathered(at::IntArrayRef numbers) {
    const int64_t before = inner_->bytes_sent();
    const at::Tensor own = at::tensor(numbers, at::kLong).to(device());
    const at::Tensor all = at::empty({size(), own.numel()}, own.options());
    inner_->all_gather(all, own).wait();
    own_bytes_ += inner_->bytes_sent() - before;
    return all.cpu();
  }

  // Throws unless kind, dtype, count and detail agree on all ranks. detail: the reduction or the
  // root.
  void compare(int64_t kind, CallDescription description, int64_t detail) {
    description.sequence = calls_++;
    LoggedCall call;
    if (base_ != nullptr) call = LoggedCall(base_->log(), base_->log()->add(place_, description));
    const at::Tensor all =
        gathered({kind, static_cast<int64_t>(description.dtype), description.count, detail});
    for (int r = 1; r < size(); ++r) {
      if (all[r].equal(all[0])) continue;
      if (base_ != nullptr) base_->refuse(call);
      fail(ErrorCode::kInvalidArgument, "collective ", description.sequence, ": rank ", r,
           " called something else than rank 0; all ranks must call the same operations in the "
           "same order");
    }
    call.ended();
  }

  // Checks an all_to_all with unequal parts: each rank's output count equals its peer's input
  // count.
  void compare_counts(const Operation& o) {
    for (const auto* counts : {&o.input_counts, &o.output_counts}) {
      check(static_cast<int>(counts->size()) == size(), ErrorCode::kInvalidArgument,
            "all_to_all: ", counts->size(), " counts for ", size(), " ranks");
    }
    const at::Tensor given = gathered(o.input_counts), taken = gathered(o.output_counts);
    for (int64_t from = 0; from < size(); ++from) {
      for (int64_t to = 0; to < size(); ++to) {
        const int64_t gives = given[from][to].item<int64_t>();
        const int64_t takes = taken[to][from].item<int64_t>();
        check(gives == takes, ErrorCode::kInvalidArgument, "all_to_all: rank ", from,
              " gives rank ", to, " ", gives, " elements, which takes ", takes);
      }
    }
  }

  std::unique_ptr<Communicator> inner_;
  CommunicatorBase* const base_;  // null for a user's own communicator
  int place_ = -1;                // index of this communicator in the operation log
  int64_t calls_ = 0;
  int64_t own_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> check_collectives(std::unique_ptr<Communicator> comm) {
  return std::make_unique<CheckedCommunicator>(std::move(comm));
}

}  // namespace tessera
