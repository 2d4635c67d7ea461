// SPDX-License-Identifier: MIT
#include "lib/comm/nccl/nccl_communicator.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <sched.h>

#include <exception>

#include "tessera/core/error.h"
#include "tessera/core/phase_clock.h"

namespace tessera::nccl {
namespace {

ncclRedOp_t nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ncclSum;
    case ReduceOp::kMax:
      return ncclMax;
    case ReduceOp::kMin:
      return ncclMin;
  }
  return ncclSum;
}

}  // namespace

// [Note: order of collectives] The side stream waits for the current stream when an operation is
// called; it runs the operations one after another; wait() makes the then current stream wait for
// the event at the operation's end. The host never waits.
class NcclCommunicator::CollectiveWork final : public Work::Impl {
 public:
  CollectiveWork(std::shared_ptr<at::cuda::CUDAEvent> done, std::vector<at::Tensor> tensors,
                 c10::cuda::CUDAStream stream, std::shared_ptr<const AbortSignal> signal)
      : done_(std::move(done)),
        kept_(std::move(tensors), stream),
        stream_(stream),
        signal_(std::move(signal)) {}
  void wait() override {
    signal_->throw_if_raised();
    const PhaseScope phase(Phase::kCommunication);
    done_->block(c10::cuda::getCurrentCUDAStream(stream_.device_index()));
    kept_.release();
  }

 private:
  std::shared_ptr<at::cuda::CUDAEvent> done_;
  Kept kept_;
  c10::cuda::CUDAStream stream_;
  std::shared_ptr<const AbortSignal> signal_;
};

NcclCommunicator::NcclCommunicator(std::string name, at::Device device, int rank, int size,
                                   std::shared_ptr<Handle> handle, std::shared_ptr<const Job> job)
    : CommunicatorBase("nccl", std::move(name), device, rank, size, job->log),
      handle_(std::move(handle)),
      job_(std::move(job)),
      stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device.index())) {
  job_->watch->add(handle_);
}

NcclCommunicator::~NcclCommunicator() {
  // A rank that unwinds leaves its peers waiting: end their operations, or closing would wait for
  // them.
  if (std::uncaught_exceptions() > 0)
    job_->abort(concat("rank ", rank(), " of ", this->name(), " failed"));
  for (const auto& [direction, edge] : edges_) edge->finish();
  handle_->close(stream_, job_->watch->timeout());
}

Work NcclCommunicator::submit(Collective collective) {
  if (grouping_) {
    grouped_.push_back(std::move(collective));
    return Work();
  }
  std::vector<Collective> one;
  one.push_back(std::move(collective));
  return launch(std::move(one));
}

void NcclCommunicator::enqueue(const std::vector<Collective>& collectives) {
  handle_->call("an NCCL collective", [&](ncclComm_t comm) {
    ncclResult_t result = ncclGroupStart();
    for (const Collective& each : collectives) {
      const ncclResult_t started = each.enqueue(comm, stream_);
      if (started != ncclSuccess && started != ncclInProgress) result = started;
    }
    const ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
  });
}

Work NcclCommunicator::launch(std::vector<Collective> collectives) {
  const bool captured =
      c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  at::cuda::CUDAEvent of_graph;
  at::cuda::CUDAEvent& ready = captured ? of_graph : ready_;
  ready.record(c10::cuda::getCurrentCUDAStream(device().index()));
  ready.block(stream_);
  auto done = captured ? std::make_shared<at::cuda::CUDAEvent>() : job_->watch->events().take();
  std::vector<LoggedCall> calls;
  for (const Collective& each : collectives) calls.push_back(each.call);
  std::shared_ptr<Watch::Operation> watched;
  if (!captured) watched = job_->watch->expect(calls, done, stream_);
  try {
    enqueue(collectives);
    done->record(stream_);
  } catch (const std::exception& error) {
    if (watched != nullptr) watched->dropped = true;
    report(calls.front(), error.what());
    throw;
  }
  for (const LoggedCall& each : calls) each.started();
  if (watched != nullptr) watched->recorded = true;
  std::vector<at::Tensor> tensors;
  for (Collective& each : collectives) {
    for (at::Tensor& tensor : each.tensors) tensors.push_back(std::move(tensor));
  }
  return Work(
      std::make_shared<CollectiveWork>(std::move(done), std::move(tensors), stream_, job_->signal));
}

Work NcclCommunicator::close_group(std::vector<Work> works) {
  grouping_ = false;
  if (!grouped_.empty()) works.push_back(launch(std::exchange(grouped_, {})));
  return join_works(std::move(works));
}

Work NcclCommunicator::start_all_reduce(const at::Tensor& tensor, ReduceOp op) {
  return submit({call(), {tensor}, [=](ncclComm_t comm, cudaStream_t s) {
                   return ncclAllReduce(tensor.const_data_ptr(), tensor.data_ptr(), tensor.numel(),
                                        nccl_type(tensor.scalar_type()), nccl_op(op), comm, s);
                 }});
}

Work NcclCommunicator::start_all_gather(const at::Tensor& output, const at::Tensor& input) {
  return submit(
      {call(), {output, input}, [=](ncclComm_t comm, cudaStream_t s) {
         return ncclAllGather(input.const_data_ptr(), output.data_ptr(), input.numel(),
                              nccl_type(input.scalar_type()), comm, s);
       }});
}

Work NcclCommunicator::start_reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                            ReduceOp op) {
  return submit(
      {call(), {output, input}, [=](ncclComm_t comm, cudaStream_t s) {
         return ncclReduceScatter(input.const_data_ptr(), output.data_ptr(), output.numel(),
                                  nccl_type(input.scalar_type()), nccl_op(op), comm, s);
       }});
}

Work NcclCommunicator::start_broadcast(const at::Tensor& tensor, int root) {
  return submit({call(), {tensor}, [=](ncclComm_t comm, cudaStream_t s) {
                   return ncclBroadcast(tensor.const_data_ptr(), tensor.data_ptr(), tensor.numel(),
                                        nccl_type(tensor.scalar_type()), root, comm, s);
                 }});
}

Edge& NcclCommunicator::edge(int source, int destination) {
  auto& edge = edges_[{source, destination}];
  if (edge == nullptr) {
    edge = std::make_shared<Edge>(concat(name(), "/", source, ">", destination),
                                  source == rank() ? Edge::Role::kSender : Edge::Role::kReceiver,
                                  device(), job_);
  }
  return *edge;
}

Work NcclCommunicator::start_send(const at::Tensor& tensor, int destination) {
  return edge(rank(), destination).transfer(tensor, call());
}

Work NcclCommunicator::start_recv(const at::Tensor& tensor, int source) {
  return edge(source, rank()).transfer(tensor, call());
}

void NcclCommunicator::report(const LoggedCall& call, const std::string& cause) {
  job_->report(call, cause);
  job_->signal->throw_if_raised();
}

void NcclCommunicator::run_barrier() {
  at::Tensor token = at::zeros({1}, at::TensorOptions(at::kInt).device(device()));
  start_all_reduce(token, ReduceOp::kSum).wait();
  at::cuda::CUDAEvent done;
  done.record(c10::cuda::getCurrentCUDAStream(device().index()));
  while (!done.query()) {
    job_->signal->throw_if_raised();
    sched_yield();
  }
  job_->signal->throw_if_raised();
}

std::unique_ptr<Communicator> NcclCommunicator::run_split(int color, int key) {
  auto handle = std::make_shared<Handle>(*handle_, color, key);
  int part_rank = 0;
  int part_size = 0;
  handle->call("ncclCommUserRank", [&](ncclComm_t c) { return ncclCommUserRank(c, &part_rank); });
  handle->call("ncclCommCount", [&](ncclComm_t c) { return ncclCommCount(c, &part_size); });
  return std::make_unique<NcclCommunicator>(name_of_part(color), device(),
                                            part_rank, part_size, std::move(handle), job_);
}

}  // namespace tessera::nccl
