// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include "lib/comm/communicator_base.h"
#include "lib/comm/local/domain.h"
#include "tessera/comm/local.h"
#include "tessera/core/phase_clock.h"

namespace tessera {
namespace local {
namespace {

class MeetingWork final : public Work::Impl {
 public:
  MeetingWork(std::shared_ptr<Meeting> meeting, int participant)
      : meeting_(std::move(meeting)), participant_(participant) {}
  void wait() override {
    const PhaseScope phase(Phase::kCommunication);
    meeting_->wait(participant_);
  }

 private:
  std::shared_ptr<Meeting> meeting_;
  int participant_;
};

class LocalCommunicator final : public CommunicatorBase {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank)
      : CommunicatorBase("local", group->name(), at::kCPU, rank, group->size(),
                         group->log_of(rank)),
        group_(group),
        sent_(size(), 0),
        received_(size(), 0) {}
  ~LocalCommunicator() override { group_->leave(rank()); }

  void abort(const std::string& reason) override {
    group_->abort(Error(ErrorCode::kUnavailable, reason));
  }

 protected:
  Work start_all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    return join({Operation::kAllReduce, tensor.scalar_type(), tensor.numel(), op, 0, {}, tensor, call()});
  }
  Work start_all_gather(const at::Tensor& output, const at::Tensor& input) override {
    return join({Operation::kAllGather, input.scalar_type(), input.numel(), ReduceOp::kSum, 0,
                 input, output, call()});
  }
  Work start_reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                            ReduceOp op) override {
    return join(
        {Operation::kReduceScatter, input.scalar_type(), output.numel(), op, 0, input, output,
         call()});
  }
  Work start_broadcast(const at::Tensor& tensor, int root) override {
    return join({Operation::kBroadcast,
                 tensor.scalar_type(),
                 tensor.numel(),
                 ReduceOp::kSum,
                 root,
                 {},
                 tensor,
                 call()});
  }
  Work start_send(const at::Tensor& tensor, int destination) override {
    Request request{.operation = Operation::kSendRecv, .dtype = tensor.scalar_type(),
                    .count = tensor.numel(), .input = tensor, .output = {}, .call = call()};
    const int64_t sequence = sent_[destination]++;
    return work(group_->message(sequence, rank(), destination, true, std::move(request)), 0);
  }
  Work start_recv(const at::Tensor& tensor, int source) override {
    Request request{.operation = Operation::kSendRecv, .dtype = tensor.scalar_type(),
                    .count = tensor.numel(), .input = {}, .output = tensor, .call = call()};
    const int64_t sequence = received_[source]++;
    return work(group_->message(sequence, source, rank(), false, std::move(request)), 1);
  }
  void report(const LoggedCall& call, const std::string& cause) override {
    throw Error(group_->job().explain(cause, call.text(), 0));
  }
  void run_barrier() override {
    Request request{};
    request.call = call();
    join(std::move(request)).wait();
  }

  std::unique_ptr<Communicator> run_split(int color, int key) override {
    const Part part = agree_on_part(color, key);
    auto group = group_->child(name_of_part(color), part.ranks);
    return make_local_communicator(std::move(group), part.rank);
  }

 private:
  Work join(Request request) {
    return work(group_->collective(collectives_++, rank(), std::move(request)), rank());
  }
  Work work(std::shared_ptr<Meeting> meeting, int participant) const {
    return Work(std::make_shared<MeetingWork>(std::move(meeting), participant));
  }

  std::shared_ptr<LocalGroup> group_;
  int64_t collectives_ = 0;
  std::vector<int64_t> sent_;
  std::vector<int64_t> received_;
};

}  // namespace

std::unique_ptr<Communicator> make_local_communicator(std::shared_ptr<LocalGroup> group, int rank) {
  return std::make_unique<LocalCommunicator>(std::move(group), rank);
}

}  // namespace local

std::vector<std::unique_ptr<Communicator>> make_local_world(int size) {
  check(size >= 1, ErrorCode::kInvalidArgument, "a world of ", size, " ranks; expected at least 1");
  auto job = std::make_shared<local::LocalJob>();
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) {
    job->logs.push_back(std::make_shared<OperationLog>(rank));
    ranks.push_back(rank);
  }
  auto group = std::make_shared<local::LocalGroup>(
      "world", std::move(ranks), std::make_shared<local::Helpers>(size), job);
  job->world = group;
  std::vector<std::unique_ptr<Communicator>> world;
  for (int rank = 0; rank < size; ++rank) {
    world.push_back(local::make_local_communicator(group, rank));
  }
  return world;
}

}  // namespace tessera
