// SPDX-License-Identifier: MIT
#include "tessera/comm/fake_mesh.h"

#include "lib/comm/communicator_base.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

// Holds the tensors until wait(), as real transports do; nothing is sent.
class HeldTensors final : public Work::Impl {
 public:
  explicit HeldTensors(std::span<const Request> requests) {
    for (const Request& request : requests) {
      for (const at::Tensor& tensor : {request.operation->output, request.operation->input}) {
        if (tensor.defined()) tensors_.push_back(tensor);
      }
    }
  }
  void wait() override { tensors_.clear(); }

 private:
  std::vector<at::Tensor> tensors_;
};

class FakeCommunicator final : public CommunicatorBase {
 public:
  FakeCommunicator(int rank, int size, std::shared_ptr<OperationLog> log)
      : CommunicatorBase("none", "world", at::kMeta, rank, size, std::move(log)) {}

  std::unique_ptr<Communicator> split_by(
      const std::function<SplitArguments(int)>& arguments) override {
    const SplitArguments own = arguments(rank());
    int members = 0, before = 0;
    for (int other = 0; other < size(); ++other) {
      const SplitArguments of = arguments(other);
      if (of.color != own.color) continue;
      ++members;
      before += of.key < own.key || (of.key == own.key && other < rank()) ? 1 : 0;
    }
    return std::make_unique<FakeCommunicator>(before, members, log());
  }
  void abort(const std::string&) override {}

 private:
  Work start_one(const Request& request) override { return start_group({&request, 1}); }
  Work start_group(std::span<const Request> requests) override {
    return Work(std::make_shared<HeldTensors>(requests));
  }
  void run_barrier(const LoggedCall&) override {}
  void report(const LoggedCall&, const std::string&) override {}
  std::unique_ptr<Communicator> run_split(int, int, const LoggedCall&) override {
    fail(ErrorCode::kInvalidArgument,
         "a communicator of a mesh that is not there cannot ask other ranks for their colors. "
         "Call split_by(), which says what each rank gives");
  }
};

}  // namespace

std::unique_ptr<Communicator> fake_communicator(int rank, int size) {
  return std::make_unique<FakeCommunicator>(rank, size, std::make_shared<OperationLog>(rank));
}

FakeMesh::FakeMesh(const MeshExtents& extents, const MeshCoordinate& at, const Wrap& wrap)
    : ledger_(std::make_shared<CommunicationLedger>()) {
  check(0 <= at.pipeline && at.pipeline < extents.pipeline && 0 <= at.data &&
            at.data < extents.data && 0 <= at.tensor && at.tensor < extents.tensor &&
            0 <= at.context && at.context < extents.context,
        ErrorCode::kInvalidArgument, "fake mesh: no rank has the coordinate pipeline ", at.pipeline,
        ", data ", at.data, ", context ", at.context, ", tensor ", at.tensor, " of ",
        extents.pipeline, " x ", extents.data, " x ", extents.context, " x ", extents.tensor);
  world_ = record_operations(fake_communicator(rank_of(at, extents), extents.ranks()), ledger_);
  if (wrap) world_ = wrap(std::move(world_));
  mesh_ = std::make_unique<DeviceMesh>(*world_, extents);
}

}  // namespace tessera
