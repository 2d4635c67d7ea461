// SPDX-License-Identifier: MIT
#include "lib/comm/nccl/nccl_edge.h"

#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstring>

#include "lib/comm/nccl/nccl_job.h"
#include "tessera/core/phase_clock.h"

namespace tessera::nccl {
namespace {

// A waiting message occupies one multiprocessor per channel.
constexpr int kChannels = 1;

}  // namespace

// [Note: order on an edge]
// A transfer starts after the current stream's work at the call (event before_). It runs on the
// edge's stream in call order and ends with event after_.
class Edge::Transfer final : public Work::Impl {
 public:
  Transfer(std::shared_ptr<Edge> edge, const at::Tensor& tensor, const LoggedCall& call)
      : edge_(std::move(edge)), kept_({tensor}, edge_->stream_), call_(call) {
    before_.record(c10::cuda::getCurrentCUDAStream(edge_->device_.index()));
    if (c10::cuda::currentStreamCaptureStatusMayInitCtx() == c10::cuda::CaptureStatus::None) {
      watched_ = edge_->job_->watch->expect({call}, after_, edge_->stream_);
    }
  }
  ~Transfer() override {
    if (watched_ != nullptr && !launched_) watched_->dropped = true;
  }

  void wait() override {
    std::optional<Error> error;
    {
      std::unique_lock lock(edge_->mutex_);
      edge_->changed_.wait(lock, [&] { return launched_ || edge_->error_; });
      if (!launched_) error = edge_->error_;
    }
    edge_->job_->signal->throw_if_raised();
    if (error) {
      edge_->job_->report(call_, error->what());
      edge_->job_->signal->throw_if_raised();
      throw Error(*error);
    }
    const PhaseScope phase(Phase::kCommunication);
    after_->block(c10::cuda::getCurrentCUDAStream(edge_->device_.index()));
    kept_.release();
  }

  std::shared_ptr<Edge> edge_;
  Kept kept_;
  LoggedCall call_;
  at::cuda::CUDAEvent before_;
  std::shared_ptr<at::cuda::CUDAEvent> after_ = std::make_shared<at::cuda::CUDAEvent>();
  std::shared_ptr<Watch::Operation> watched_;
  bool launched_ = false;
};

Edge::Edge(std::string key, Role role, at::Device device, std::shared_ptr<const Job> job)
    : key_(std::move(key)),
      role_(role),
      device_(device),
      job_(std::move(job)),
      stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device.index())) {
  thread_ = std::thread([this] { connect(); });
}

void Edge::connect() {
  const c10::cuda::CUDAGuard guard(device_);
  try {
    ncclUniqueId id;
    if (role_ == Role::kSender) {
      check(ncclGetUniqueId(&id) == ncclSuccess, ErrorCode::kUnavailable,
            "ncclGetUniqueId failed: ", ncclGetLastError(nullptr));
      job_->post(key_, std::string(id.internal, sizeof id.internal));
    } else {
      const std::string bytes = job_->take(key_);
      check(bytes.size() == sizeof id.internal, ErrorCode::kInternal, "an NCCL id of ",
            bytes.size(), " bytes");
      std::memcpy(id.internal, bytes.data(), bytes.size());
    }
    auto handle =
        std::make_shared<Handle>(id, role_ == Role::kSender ? 0 : 1, 2, job_->signal, kChannels);
    job_->watch->add(handle);
    // NCCL connects at the first message and waits for the peer: done here, off the caller's
    // thread, and not on the default stream, which may be busy for long.
    const c10::cuda::CUDAStreamGuard of_the_edge(stream_);
    const at::Tensor token = at::zeros({1}, at::TensorOptions(at::kByte).device(device_));
    transmit(*handle, token);
    stream_.synchronize();
    std::lock_guard lock(mutex_);
    handle_ = std::move(handle);
    for (const auto& transfer : queue_) launch(*transfer);
    queue_.clear();
    connected_ = true;
  } catch (const std::exception& error) {
    std::lock_guard lock(mutex_);
    error_ = Error(ErrorCode::kUnavailable, error.what());
    queue_.clear();
  }
  changed_.notify_all();
}

void Edge::finish() {
  thread_.join();
  if (handle_ != nullptr) handle_->close(stream_, job_->watch->timeout());
}

void Edge::transmit(Handle& handle, const at::Tensor& tensor) const {
  const auto type = nccl_type(tensor.scalar_type());
  handle.call(role_ == Role::kSender ? "ncclSend" : "ncclRecv", [&](ncclComm_t comm) {
    return role_ == Role::kSender
               ? ncclSend(tensor.const_data_ptr(), tensor.numel(), type, 1, comm, stream_)
               : ncclRecv(tensor.data_ptr(), tensor.numel(), type, 0, comm, stream_);
  });
}

void Edge::launch(Transfer& transfer) {
  const at::Tensor& tensor = transfer.kept_.tensors().front();
  transfer.before_.block(stream_);
  if (tensor.numel() > 0) transmit(*handle_, tensor);
  transfer.after_->record(stream_);
  if (transfer.watched_ != nullptr) transfer.watched_->recorded = true;
  transfer.launched_ = true;
  transfer.call_.started();
}

Work Edge::transfer(const at::Tensor& tensor, const LoggedCall& call) {
  auto transfer = std::make_shared<Transfer>(shared_from_this(), tensor, call);
  std::lock_guard lock(mutex_);
  if (error_) throw Error(*error_);
  if (connected_) {
    launch(*transfer);
  } else {
    queue_.push_back(transfer);
  }
  return Work(std::move(transfer));
}

}  // namespace tessera::nccl
