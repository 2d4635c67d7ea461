#pragma once
// The communicator over TCP: every rank reduces its own part of a tensor, in rank order.
#include <memory>

#include "lib/comm/communicator_base.h"
#include "lib/comm/tcp/mesh.h"

namespace tessera::tcp {

// What the communicators of one job share.
struct Job {
  std::unique_ptr<Mesh> mesh;
  std::function<void(const std::string&)> abort;
};

// The ranks of a communicator; operations keep it, and so may outlive the communicator.
struct Group {
  Mesh* mesh;
  int rank;
  std::vector<int> world_ranks;
};

// fp16 and bf16 add in fp32 with one rounding; results are those of in-process ranks, bit for bit.
class TcpCommunicator final : public CommunicatorBase {
 public:
  // world_ranks: by this communicator's rank. name tells communicators apart, also on the wire.
  TcpCommunicator(std::string name, int rank, std::vector<int> world_ranks,
                  std::shared_ptr<const Job> job);

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
  std::unique_ptr<Communicator> run_split(int color, int key) override;

 private:
  std::shared_ptr<Operation> collective(const std::string& what, std::vector<at::Tensor> tensors);
  std::shared_ptr<Operation> message(const std::string& what, const at::Tensor& tensor,
                                     uint64_t number);
  Work launch(const std::shared_ptr<Operation>& operation);

  const std::string name_;
  const uint64_t id_;
  const std::shared_ptr<const Group> group_;
  const std::shared_ptr<const Job> job_;
  uint64_t collectives_ = 0;
  int splits_ = 0;
  std::vector<uint64_t> sent_, received_;  // messages of each pair
};

}  // namespace tessera::tcp
