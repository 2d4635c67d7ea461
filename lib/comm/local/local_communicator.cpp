// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include "lib/comm/communicator_base.h"
#include "lib/comm/local/domain.h"
#include "tessera/comm/local.h"
#include "tessera/core/phase_clock.h"

namespace tessera {
namespace local {
namespace {

class LocalCollectiveWork final : public Work::Impl {
 public:
  LocalCollectiveWork(std::shared_ptr<LocalCollective> meeting, int participant)
      : meeting_(std::move(meeting)), participant_(participant) {}
  void wait() override {
    const PhaseScope phase(Phase::kCommunication);
    meeting_->wait(participant_);
  }

 private:
  std::shared_ptr<LocalCollective> meeting_;
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
  Work start_one(const Request& request) override {
    const Operation& o = *request.operation;
    Contribution contribution{o, request.call};
    if (!o.is_message()) return join(std::move(contribution));
    const bool sends = o.kind == OperationKind::kSend;
    const int64_t sequence = (sends ? sent_ : received_)[o.peer]++;
    const int source = sends ? rank() : o.peer, destination = sends ? o.peer : rank();
    return work(group_->message(sequence, source, destination, sends, std::move(contribution)),
                sends ? 0 : 1);
  }
  void report(const LoggedCall& call, const std::string& cause) override {
    throw Error(group_->job().explain(cause, call.text(), 0));
  }
  void run_barrier(const LoggedCall& call) override { join({{}, call}).wait(); }

  std::unique_ptr<Communicator> run_split(int color, int key, const LoggedCall& call) override {
    const Part part = agree_on_part(color, key, call);
    auto group = group_->child(name_of_part(color), part.ranks);
    return make_local_communicator(std::move(group), part.rank);
  }

 private:
  Work join(Contribution contribution) {
    return work(group_->collective(collectives_++, rank(), std::move(contribution)), rank());
  }
  Work work(std::shared_ptr<LocalCollective> meeting, int participant) const {
    return Work(std::make_shared<LocalCollectiveWork>(std::move(meeting), participant));
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
  auto group = std::make_shared<local::LocalGroup>("world", std::move(ranks),
                                                   std::make_shared<local::Helpers>(size), job);
  job->world = group;
  std::vector<std::unique_ptr<Communicator>> world;
  for (int rank = 0; rank < size; ++rank) {
    world.push_back(local::make_local_communicator(group, rank));
  }
  return world;
}

}  // namespace tessera
