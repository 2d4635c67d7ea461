#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <vector>

#include "lib/comm/bootstrap/wire.h"
#include "lib/comm/communicator_base.h"
#include "tessera/comm/checked.h"
#include "tessera/comm/control_channel.h"
#include "tessera/comm/operation_scope.h"
#include "tessera/core/error.h"
#include "tessera/core/host_name.h"

namespace tessera {
namespace {

enum class Kind : int64_t { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kBarrier, kSplit };

// What must be the same on all ranks, as numbers.
struct Fingerprint {
  Kind call;
  at::ScalarType dtype = at::kByte;
  int64_t count = 0;
  int64_t detail = 0;  // reduction or root

  std::array<int64_t, 4> numbers() const {
    return {static_cast<int64_t>(call), static_cast<int64_t>(dtype), count, detail};
  }
};

Call call_of(const Fingerprint& fingerprint) {
  constexpr const char* kNames[] = {"all_reduce", "all_gather", "reduce_scatter",
                                    "broadcast",  "barrier",    "split"};
  constexpr const char* kReductions[] = {", sum", ", max", ", min"};
  const auto [call, dtype, count, detail] = fingerprint;
  Call text;
  text.operation = kNames[static_cast<size_t>(call)];
  if (call == Kind::kBarrier || call == Kind::kSplit) {
    text.data = "()";
  } else {
    const std::string extra = call == Kind::kAllGather   ? ""
                              : call == Kind::kBroadcast ? concat(", root ", detail)
                                                          : kReductions[detail];
    text.data = concat("(", count, " x ", dtype, extra, ")");
  }
  const OperationContext& context = operation_context();
  text.label = context.label;
  text.phase = context.phase;
  text.step = context.step;
  text.since_s = std::chrono::duration<double>(
                     std::chrono::system_clock::now().time_since_epoch())
                     .count();
  return text;
}

class CheckedCommunicator final : public Communicator {
 public:
  explicit CheckedCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}

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
    Call mine = call_of(fingerprint);
    mine.sequence = calls_++;
    const std::string label = concat("the check of ", mine.operation, mine.data,
                                     mine.label.empty() ? "" : " of ", mine.label);
    const ForTensor of(label);
    const int64_t before = inner_->bytes_sent();
    const auto numbers = fingerprint.numbers();
    const int64_t width = static_cast<int64_t>(numbers.size());
    const at::Tensor own = at::tensor(numbers, at::kLong).to(device());
    const at::Tensor gathered = at::empty({size(), width}, own.options());
    inner_->all_gather(gathered, own).wait();
    const at::Tensor all = gathered.cpu();
    own_bytes_ += inner_->bytes_sent() - before;
    for (int r = 1; r < size(); ++r) {
      if (!all[r].equal(all[0])) refuse(std::move(mine));
    }
  }

  // Every rank comes here: they tell each other what they called, and for what.
  [[noreturn]] void refuse(Call mine) {
    const auto* known = dynamic_cast<const CommunicatorBase*>(inner_.get());
    mine.communicator = known == nullptr ? "a communicator" : known->name();
    const int world_rank = known == nullptr ? rank() : known->log()->rank();
    CommunicatorChannel channel(*inner_);
    Failure failure{.call = mine, .ranks = {}};
    for (const std::string& bytes : channel.exchange(
             control::pack({std::to_string(world_rank), host_name(), mine.pack()}))) {
      const std::vector<std::string> parts = control::unpack(bytes);
      const auto place = static_cast<size_t>(std::stoi(parts.at(0)));
      failure.ranks.resize(std::max(failure.ranks.size(), place + 1));
      RankStatus status;
      status.asked = Call::unpack(parts.at(2));
      status.communicators.push_back({mine.communicator, 0, size(), status.asked.sequence + 1});
      failure.ranks[place] = {parts.at(1), std::move(status)};
    }
    const Error error = failure.explain();
    if (known != nullptr) known->log()->fail(error.what());
    throw error;
  }

  std::unique_ptr<Communicator> inner_;
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
