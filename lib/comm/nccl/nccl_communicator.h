// SPDX-License-Identifier: MIT
#pragma once
// Communicator over NCCL: collectives on one side stream; messages on one stream per peer and
// direction; large all-gathers of one host by copy engines on a third.
#include <c10/cuda/CUDAStream.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lib/comm/communicator_base.h"
#include "lib/comm/nccl/nccl_edge.h"
#include "lib/comm/nccl/nccl_job.h"
#include "lib/comm/nccl/peer_copies.h"

namespace tessera::nccl {

class NcclCommunicator final : public CommunicatorBase {
 public:
  NcclCommunicator(std::string name, at::Device device, int rank, int size,
                   std::shared_ptr<Handle> handle, std::shared_ptr<const Job> job);
  ~NcclCommunicator() override;

  void abort(const std::string& reason) override { job_->abort(reason); }

 protected:
  Work start_one(const Request& request) override { return start_group({&request, 1}); }
  Work start_group(std::span<const Request> requests) override;
  void run_barrier(const LoggedCall& call) override;
  void report(const LoggedCall& call, const std::string& cause) override;
  std::unique_ptr<Communicator> run_split(int color, int key, const LoggedCall& call) override;

 private:
  class CollectiveWork;

  Work launch(std::span<const Request> collectives);
  void enqueue(std::span<const Request> collectives);
  // Whether copies gather these, equal on all ranks. Connects at the first that they could.
  bool gathers_by_copies(std::span<const Request> collectives);
  void connect_copies(const LoggedCall& call);
  bool copies_pay();
  std::vector<std::string> exchange(const std::string& text);
  Edge& edge(int source, int destination);

  const std::shared_ptr<Handle> handle_;
  const std::shared_ptr<const Job> job_;
  const c10::cuda::CUDAStream stream_;
  at::cuda::CUDAEvent ready_;  // the current stream's work at the last call
  std::map<std::pair<int, int>, std::shared_ptr<Edge>> edges_;
  std::shared_ptr<PeerCopies> copies_;  // nullptr: none, or not yet
  bool copies_tried_ = false;
};

}  // namespace tessera::nccl
