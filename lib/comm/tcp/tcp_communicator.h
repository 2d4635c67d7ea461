// SPDX-License-Identifier: MIT
#pragma once
// Communicator over TCP: every rank reduces its own part of a tensor, in rank order.
#include <memory>

#include "lib/comm/communicator_base.h"
#include "lib/comm/tcp/mesh.h"

namespace tessera::tcp {

// State shared by the communicators of one job.
struct Job {
  std::unique_ptr<Mesh> mesh;
  std::function<void(const std::string&)> abort;
  std::shared_ptr<OperationLog> log;
  ReportFailure report;
};

// Ranks of a communicator; kept by its operations, which may outlive it.
struct Group {
  Mesh* mesh;
  int rank;
  std::vector<int> world_ranks;
};

// fp16 and bf16 add in fp32 and round once. Results equal those of in-process ranks bit for bit.
class TcpCommunicator final : public CommunicatorBase {
 public:
  // world_ranks: indexed by this communicator's rank. name: identifies the communicator, also on
  // the wire.
  TcpCommunicator(std::string name, int rank, std::vector<int> world_ranks,
                  std::shared_ptr<const Job> job);

  void abort(const std::string& reason) override { job_->abort(reason); }

 protected:
  Work start_one(const Request& request) override;
  void run_barrier(const LoggedCall& call) override;
  void report(const LoggedCall& call, const std::string& cause) override;
  std::unique_ptr<Communicator> run_split(int color, int key, const LoggedCall& call) override;

 private:
  std::shared_ptr<Transfer> transfer_of(const LoggedCall& call);
  Work launch(const std::shared_ptr<Transfer>& transfer);

  const uint64_t id_;
  const std::shared_ptr<const Group> group_;
  const std::shared_ptr<const Job> job_;
};

}  // namespace tessera::tcp
