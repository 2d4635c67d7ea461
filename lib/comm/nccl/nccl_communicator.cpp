// SPDX-License-Identifier: MIT
#include "lib/comm/nccl/nccl_communicator.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "tessera/core/error.h"
#include "tessera/core/log.h"
#include "tessera/core/phase_clock.h"

namespace tessera::nccl {
namespace {

// Copies are taken up to this multiple of NCCL's time: they leave the multiprocessors alone.
constexpr float kWorthwhile = 1.5F;
constexpr int kProbes = 4;

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

// One ncclSend and ncclRecv per rank, this one included; call inside a group.
ncclResult_t all_to_all(const Operation& o, ncclComm_t comm, int size, cudaStream_t stream) {
  const PartRanges from(o.output, o.output_counts, size), to(o.input, o.input_counts, size);
  const ncclDataType_t type = nccl_type(o.input.scalar_type());
  const auto bytes = static_cast<int64_t>(o.input.itemsize());
  ncclResult_t result = ncclSuccess;
  const auto keep_first = [&](ncclResult_t next) {
    if (result == ncclSuccess || result == ncclInProgress) result = next;
  };
  for (int r = 0; r < size; ++r) {
    if (to.count(r) > 0) {
      const char* data = static_cast<const char*>(o.input.const_data_ptr()) + to.begin(r) * bytes;
      keep_first(ncclSend(data, static_cast<size_t>(to.count(r)), type, r, comm, stream));
    }
    if (from.count(r) > 0) {
      char* data = static_cast<char*>(o.output.data_ptr()) + from.begin(r) * bytes;
      keep_first(ncclRecv(data, static_cast<size_t>(from.count(r)), type, r, comm, stream));
    }
  }
  return result;
}

ncclResult_t enqueue_collective(const Operation& o, ncclComm_t comm, int size,
                                cudaStream_t stream) {
  const ncclDataType_t type = nccl_type(o.tensor().scalar_type());
  void* const output = o.output.data_ptr();
  const void* const input = o.input.defined() ? o.input.const_data_ptr() : output;
  const auto whole = static_cast<size_t>(o.output.numel());
  switch (o.kind) {
    case OperationKind::kAllReduce:
      return ncclAllReduce(input, output, whole, type, nccl_op(o.reduce), comm, stream);
    case OperationKind::kAllGather:
      return ncclAllGather(input, output, static_cast<size_t>(o.input.numel()), type, comm, stream);
    case OperationKind::kReduceScatter:
      return ncclReduceScatter(input, output, whole, type, nccl_op(o.reduce), comm, stream);
    case OperationKind::kAllToAll:
      return all_to_all(o, comm, size, stream);
    case OperationKind::kBroadcast:
      return ncclBroadcast(input, output, whole, type, o.peer, comm, stream);
    case OperationKind::kSend:
    case OperationKind::kRecv:
    case OperationKind::kBarrier:
      break;
  }
  return ncclInvalidUsage;
}

// Blocks the host until the event has come, or throws after an abort.
void poll(at::cuda::CUDAEvent& event, const AbortSignal& signal) {
  while (!event.query()) {
    signal.throw_if_raised();
    sched_yield();
  }
  signal.throw_if_raised();
}

// All-gathers as copies know them.
std::vector<PeerCopies::Gather> gathers_of(std::span<const Request> collectives) {
  std::vector<PeerCopies::Gather> gathers;
  for (const Request& each : collectives) {
    const Operation& o = *each.operation;
    gathers.push_back({.output = static_cast<char*>(o.output.data_ptr()),
                       .input = static_cast<const char*>(o.input.const_data_ptr()),
                       .bytes = o.input.nbytes()});
  }
  return gathers;
}

}  // namespace

// [Note: order of collectives]
// The side stream waits for the current stream at each call and runs operations in order. wait()
// makes the then current stream wait for the event at the operation's end. The host never blocks.
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
  // A rank that unwinds leaves peers waiting. Abort their operations, since closing would wait for
  // them.
  if (std::uncaught_exceptions() > 0)
    job_->abort(concat("rank ", rank(), " of ", this->name(), " failed"));
  for (const auto& [direction, edge] : edges_) edge->finish();
  if (copies_ != nullptr) copies_->close(*job_->signal, job_->watch->timeout());
  handle_->close(stream_, job_->watch->timeout());
}

void NcclCommunicator::enqueue(std::span<const Request> collectives) {
  handle_->call("an NCCL collective", [&](ncclComm_t comm) {
    ncclResult_t result = ncclGroupStart();
    for (const Request& each : collectives) {
      const ncclResult_t started = enqueue_collective(*each.operation, comm, size(), stream_);
      if (started != ncclSuccess && started != ncclInProgress) result = started;
    }
    const ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
  });
}

Work NcclCommunicator::launch(std::span<const Request> collectives) {
  const bool captured =
      c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  const bool copied = !captured && gathers_by_copies(collectives);
  const c10::cuda::CUDAStream stream = copied ? copies_->stream() : stream_;
  at::cuda::CUDAEvent of_graph;
  at::cuda::CUDAEvent& ready = captured ? of_graph : ready_;
  ready.record(c10::cuda::getCurrentCUDAStream(device().index()));
  ready.block(stream);
  auto done = captured ? std::make_shared<at::cuda::CUDAEvent>() : job_->watch->events().take();
  std::vector<LoggedCall> calls;
  for (const Request& each : collectives) calls.push_back(each.call);
  std::shared_ptr<Watch::Operation> watched;
  if (!captured) watched = job_->watch->expect(calls, done, stream);
  try {
    if (copied) {
      copies_->all_gather(gathers_of(collectives));
    } else {
      enqueue(collectives);
    }
    done->record(stream);
  } catch (const std::exception& error) {
    if (watched != nullptr) watched->dropped = true;
    report(calls.front(), error.what());
    throw;
  }
  for (const LoggedCall& each : calls) each.started();
  if (watched != nullptr) watched->recorded = true;
  std::vector<at::Tensor> tensors;
  for (const Request& each : collectives) {
    tensors.push_back(each.operation->output);
    if (each.operation->input.defined()) tensors.push_back(each.operation->input);
  }
  return Work(
      std::make_shared<CollectiveWork>(std::move(done), std::move(tensors), stream, job_->signal));
}

bool NcclCommunicator::gathers_by_copies(std::span<const Request> collectives) {
  if (job_->least_copied == 0 || (copies_tried_ && copies_ == nullptr)) return false;
  size_t bytes = 0;
  for (const Request& each : collectives) {
    if (each.operation->kind != OperationKind::kAllGather) return false;
    bytes += each.operation->input.nbytes();
  }
  if (bytes < job_->least_copied) return false;
  if (!copies_tried_) connect_copies(collectives.front().call);
  return copies_ != nullptr;
}

void NcclCommunicator::connect_copies(const LoggedCall& call) {
  copies_tried_ = true;
  const auto watched = job_->watch->expect({call}, job_->watch->events().take(), stream_);
  const auto ask = [this](const std::string& text) { return exchange(text); };
  auto copies = PeerCopies::connect(
      ask, rank(), size(), c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device().index()));
  if (copies != nullptr) {
    job_->watch->add(copies);
    copies_ = copies;
    const auto said = exchange(copies_pay() ? "y" : "n");
    if (std::ranges::count(said, "y") < size()) {
      copies_->close(*job_->signal, job_->watch->timeout());
      copies_ = nullptr;
    }
  }
  watched->dropped = true;
  if (rank() == 0) {
    tessera::log(LogLevel::kDebug, name(), ": large all-gathers run ",
                 copies_ == nullptr ? "by NCCL" : "by the GPUs' copy engines");
  }
}

bool NcclCommunicator::copies_pay() {
  const PeerCopies::Gather probe = copies_->probe();
  const auto seconds = [&](c10::cuda::CUDAStream stream, const auto& gather) {
    gather();
    at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
    begin.record(stream);
    for (int i = 0; i < kProbes; ++i) gather();
    end.record(stream);
    poll(end, *job_->signal);
    return begin.elapsed_time(end);
  };
  const auto by_copies = seconds(copies_->stream(), [&] { copies_->all_gather({&probe, 1}); });
  const auto by_nccl = seconds(stream_, [&] {
    handle_->call("ncclAllGather", [&](ncclComm_t comm) {
      return ncclAllGather(probe.input, probe.output, probe.bytes, ncclUint8, comm, stream_);
    });
  });
  return by_copies <= kWorthwhile * by_nccl;
}

std::vector<std::string> NcclCommunicator::exchange(const std::string& text) {
  const c10::cuda::CUDAStreamGuard on_side_stream(stream_);
  const auto length = static_cast<int64_t>(text.size());
  const auto host = at::TensorOptions(at::kByte).pinned_memory(true);
  const at::Tensor own = at::empty({length}, host), all = at::empty({size() * length}, host);
  std::memcpy(own.data_ptr(), text.data(), text.size());
  const at::Tensor input = own.to(device(), /*non_blocking=*/true);
  const at::Tensor output = at::empty({size() * length}, input.options());
  handle_->call("ncclAllGather", [&](ncclComm_t comm) {
    return ncclAllGather(input.const_data_ptr(), output.data_ptr(), text.size(), ncclUint8, comm,
                         stream_);
  });
  all.copy_(output, /*non_blocking=*/true);
  at::cuda::CUDAEvent done;
  done.record(stream_);
  poll(done, *job_->signal);
  std::vector<std::string> texts;
  for (int r = 0; r < size(); ++r) {
    texts.emplace_back(static_cast<const char*>(all.const_data_ptr()) + r * length, text.size());
  }
  return texts;
}

Work NcclCommunicator::start_group(std::span<const Request> requests) {
  std::vector<Work> works;
  std::vector<Request> collectives;
  for (const Request& each : requests) {
    const Operation& o = *each.operation;
    if (o.kind == OperationKind::kSend) {
      works.push_back(edge(rank(), o.peer).transfer(o.input, each.call));
    } else if (o.kind == OperationKind::kRecv) {
      works.push_back(edge(o.peer, rank()).transfer(o.output, each.call));
    } else {
      collectives.push_back(each);
    }
  }
  if (!collectives.empty()) works.push_back(launch(collectives));
  return join_works(std::move(works));
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

void NcclCommunicator::report(const LoggedCall& call, const std::string& cause) {
  job_->report(call, cause);
  job_->signal->throw_if_raised();
}

void NcclCommunicator::run_barrier(const LoggedCall& call) {
  const Operation sum{.kind = OperationKind::kAllReduce,
                      .output = at::zeros({1}, at::TensorOptions(at::kInt).device(device()))};
  start_one({&sum, call}).wait();
  at::cuda::CUDAEvent done;
  done.record(c10::cuda::getCurrentCUDAStream(device().index()));
  poll(done, *job_->signal);
}

std::unique_ptr<Communicator> NcclCommunicator::run_split(int color, int key, const LoggedCall&) {
  auto handle = std::make_shared<Handle>(*handle_, color, key);
  int part_rank = 0;
  int part_size = 0;
  handle->call("ncclCommUserRank", [&](ncclComm_t c) { return ncclCommUserRank(c, &part_rank); });
  handle->call("ncclCommCount", [&](ncclComm_t c) { return ncclCommCount(c, &part_size); });
  return std::make_unique<NcclCommunicator>(name_of_part(color), device(), part_rank, part_size,
                                            std::move(handle), job_);
}

}  // namespace tessera::nccl
