// SPDX-License-Identifier: MIT
#pragma once
// The communicator over NCCL: collectives on a side stream, messages on edges of their own.
#include <c10/cuda/CUDAStream.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/comm/communicator_base.h"
#include "lib/comm/nccl/nccl_edge.h"
#include "lib/comm/nccl/nccl_job.h"

namespace tessera::nccl {

class NcclCommunicator final : public CommunicatorBase {
 public:
  NcclCommunicator(std::string name, at::Device device, int rank, int size,
                   std::shared_ptr<Handle> handle, std::shared_ptr<const Job> job);
  ~NcclCommunicator() override;

  void abort(const std::string& reason) override { job_->abort(reason); }

 protected:
  Work start_all_reduce(const at::Tensor& tensor, ReduceOp op) override;
  Work start_all_gather(const at::Tensor& output, const at::Tensor& input) override;
  Work start_reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                            ReduceOp op) override;
  Work start_broadcast(const at::Tensor& tensor, int root) override;
  Work start_send(const at::Tensor& tensor, int destination) override;
  Work start_recv(const at::Tensor& tensor, int source) override;
  void run_barrier() override;
  void report(const LoggedCall& call, const std::string& cause) override;
  std::unique_ptr<Communicator> run_split(int color, int key) override;
  void open_group() override { grouping_ = true; }
  Work close_group(std::vector<Work> works) override;

 private:
  class CollectiveWork;
  struct Collective {
    LoggedCall call;
    std::vector<at::Tensor> tensors;
    std::function<ncclResult_t(ncclComm_t, cudaStream_t)> enqueue;
  };

  Work submit(Collective collective);
  Work launch(std::vector<Collective> collectives);
  void enqueue(const std::vector<Collective>& collectives);
  Edge& edge(int source, int destination);

  const std::shared_ptr<Handle> handle_;
  const std::shared_ptr<const Job> job_;
  const c10::cuda::CUDAStream stream_;
  bool grouping_ = false;
  std::vector<Collective> grouped_;
  at::cuda::CUDAEvent ready_;  // what the current stream held when the last operation was called
  std::map<std::pair<int, int>, std::shared_ptr<Edge>> edges_;
};

}  // namespace tessera::nccl
