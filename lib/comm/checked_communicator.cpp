// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include <array>
#include <functional>
#include <vector>

#include "lib/comm/communicator_base.h"
#include "tessera/comm/checked.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

enum class Kind : int64_t { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kBarrier, kSplit };

// What must be the same on all ranks, as numbers.
struct Fingerprint {
  Kind kind;
  at::ScalarType dtype = at::kByte;
  int64_t count = 0;
  int64_t detail = 0;  // reduction or root

  std::array<int64_t, 4> numbers() const {
    return {static_cast<int64_t>(kind), static_cast<int64_t>(dtype), count, detail};
  }
};

CallDescription describe(const Fingerprint& fingerprint, int64_t number) {
  constexpr const char* kNames[] = {"all_reduce", "all_gather", "reduce_scatter",
                                    "broadcast",  "barrier",    "split"};
  constexpr const char* kReductions[] = {", sum", ", max", ", min"};
  const auto [kind, dtype, count, detail] = fingerprint;
  const bool reduces = kind == Kind::kAllReduce || kind == Kind::kReduceScatter;
  const bool moves = kind != Kind::kBarrier && kind != Kind::kSplit;
  return {.operation = kNames[static_cast<size_t>(kind)],
          .suffix = reduces ? kReductions[detail] : "",
          .dtype = dtype,
          .count = moves ? count : -1,
          .root = kind == Kind::kBroadcast ? static_cast<int>(detail) : -1,
          .sequence = number};
}

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

  Work all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    return run({Kind::kAllReduce, tensor.scalar_type(), tensor.numel(), static_cast<int64_t>(op)},
               [=, this] { return inner_->all_reduce(tensor, op); });
  }
  Work all_gather(const at::Tensor& output, const at::Tensor& input) override {
    return run({Kind::kAllGather, input.scalar_type(), input.numel()},
               [=, this] { return inner_->all_gather(output, input); });
  }
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) override {
    return run(
        {Kind::kReduceScatter, output.scalar_type(), output.numel(), static_cast<int64_t>(op)},
        [=, this] { return inner_->reduce_scatter(output, input, op); });
  }
  Work broadcast(const at::Tensor& tensor, int root) override {
    return run({Kind::kBroadcast, tensor.scalar_type(), tensor.numel(), root},
               [=, this] { return inner_->broadcast(tensor, root); });
  }
  Work send(const at::Tensor& tensor, int destination) override {
    return collect([=, this] { return inner_->send(tensor, destination); });
  }
  Work recv(const at::Tensor& tensor, int source) override {
    return collect([=, this] { return inner_->recv(tensor, source); });
  }
  void barrier() override {
    compare({Kind::kBarrier});
    inner_->barrier();
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    compare({Kind::kSplit});
    return check_collectives(inner_->split(color, key));
  }

  // The calls of a group are compared one by one, then started together.
  void begin_group() override {
    check(!grouping_, ErrorCode::kInvalidArgument, "begin_group: groups do not nest");
    grouping_ = true;
  }
  Work end_group() override {
    check(grouping_, ErrorCode::kInvalidArgument, "end_group: there was no begin_group");
    grouping_ = false;
    const auto calls = std::exchange(group_, {});
    Group group(*inner_);
    for (const auto& start : calls) start();
    return group.end();
  }

 private:
  Work run(const Fingerprint& fingerprint, std::function<Work()> start) {
    compare(fingerprint);
    return collect(std::move(start));
  }

  Work collect(std::function<Work()> start) {
    if (!grouping_) return start();
    group_.push_back(std::move(start));
    return Work();
  }

  void compare(const Fingerprint& fingerprint) {
    const CallDescription description = describe(fingerprint, calls_++);
    LoggedCall call;
    if (base_ != nullptr) call = LoggedCall(base_->log(), base_->log()->add(place_, description));
    const int64_t before = inner_->bytes_sent();
    const auto numbers = fingerprint.numbers();
    const int64_t width = static_cast<int64_t>(numbers.size());
    const at::Tensor own = at::tensor(numbers, at::kLong).to(device());
    const at::Tensor gathered = at::empty({size(), width}, own.options());
    inner_->all_gather(gathered, own).wait();
    const at::Tensor all = gathered.cpu();
    own_bytes_ += inner_->bytes_sent() - before;
    for (int r = 1; r < size(); ++r) {
      if (all[r].equal(all[0])) continue;
      if (base_ != nullptr) base_->refuse(call);
      fail(ErrorCode::kInvalidArgument, "collective ", description.sequence, ": rank ", r,
           " called something else than rank 0; all ranks must call the same operations in the "
           "same order");
    }
    call.ended();
  }

  std::unique_ptr<Communicator> inner_;
  CommunicatorBase* const base_;  // null: it is a user's own
  int place_ = -1;                // in the log of calls
  int64_t calls_ = 0;
  int64_t own_bytes_ = 0;
  bool grouping_ = false;
  std::vector<std::function<Work()>> group_;
};

}  // namespace

std::unique_ptr<Communicator> check_collectives(std::unique_ptr<Communicator> comm) {
  return std::make_unique<CheckedCommunicator>(std::move(comm));
}

}  // namespace tessera
