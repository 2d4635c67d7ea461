#include <ATen/ATen.h>

#include <array>
#include <functional>
#include <vector>

#include "tessera/comm/checked.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

enum class Call : int64_t { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kBarrier, kSplit };

// What must be the same on all ranks, as numbers.
struct Fingerprint {
  Call call;
  at::ScalarType dtype = at::kByte;
  int64_t count = 0;
  int64_t detail = 0;  // reduction or root

  std::array<int64_t, 4> numbers() const {
    return {static_cast<int64_t>(call), static_cast<int64_t>(dtype), count, detail};
  }
};

std::string describe(const int64_t* numbers) {
  constexpr const char* kNames[] = {"all_reduce", "all_gather", "reduce_scatter",
                                    "broadcast",  "barrier",    "split"};
  constexpr const char* kReductions[] = {"sum", "max", "min"};
  const auto call = static_cast<Call>(numbers[0]);
  const std::string name = kNames[numbers[0]];
  if (call == Call::kBarrier || call == Call::kSplit) return name;
  const std::string data =
      concat(name, "(", numbers[2], " x ", static_cast<at::ScalarType>(numbers[1]));
  if (call == Call::kAllGather) return data + ")";
  if (call == Call::kBroadcast) return concat(data, ", root ", numbers[3], ")");
  return concat(data, ", ", kReductions[numbers[3]], ")");
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
    return run({Call::kAllReduce, tensor.scalar_type(), tensor.numel(), static_cast<int64_t>(op)},
               [=, this] { return inner_->all_reduce(tensor, op); });
  }
  Work all_gather(const at::Tensor& output, const at::Tensor& input) override {
    return run({Call::kAllGather, input.scalar_type(), input.numel()},
               [=, this] { return inner_->all_gather(output, input); });
  }
  Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) override {
    return run(
        {Call::kReduceScatter, output.scalar_type(), output.numel(), static_cast<int64_t>(op)},
        [=, this] { return inner_->reduce_scatter(output, input, op); });
  }
  Work broadcast(const at::Tensor& tensor, int root) override {
    return run({Call::kBroadcast, tensor.scalar_type(), tensor.numel(), root},
               [=, this] { return inner_->broadcast(tensor, root); });
  }
  Work send(const at::Tensor& tensor, int destination) override {
    return collect([=, this] { return inner_->send(tensor, destination); });
  }
  Work recv(const at::Tensor& tensor, int source) override {
    return collect([=, this] { return inner_->recv(tensor, source); });
  }
  void barrier() override {
    compare({Call::kBarrier});
    inner_->barrier();
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    compare({Call::kSplit});
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
    const int64_t before = inner_->bytes_sent();
    const auto numbers = fingerprint.numbers();
    const int64_t width = static_cast<int64_t>(numbers.size());
    const at::Tensor mine = at::tensor(numbers, at::kLong).to(device());
    const at::Tensor gathered = at::empty({size(), width}, mine.options());
    inner_->all_gather(gathered, mine).wait();
    const at::Tensor all = gathered.cpu();
    own_bytes_ += inner_->bytes_sent() - before;
    const int64_t number = calls_++;
    for (int r = 1; r < size(); ++r) {
      if (all[r].equal(all[0])) continue;
      const int64_t* first = all.const_data_ptr<int64_t>();
      fail(ErrorCode::kInvalidArgument, "collective ", number, ": rank 0 called ", describe(first),
           ", rank ", r, " called ", describe(first + r * width),
           "; all ranks must call the same operations in the same order");
    }
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
