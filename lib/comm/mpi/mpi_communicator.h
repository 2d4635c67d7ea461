// SPDX-License-Identifier: MIT
#pragma once
// The communicator over MPI: every operation is a set of non-blocking MPI calls.
#include <memory>

#include "lib/comm/communicator_base.h"
#include "lib/comm/mpi/mpi_runtime.h"
#include "lib/comm/transport.h"

namespace tessera::mpi {

class MpiCommunicator final : public CommunicatorBase {
 public:
  // What the communicators of one job share.
  struct Job {
    std::shared_ptr<AbortSignal> signal;
    std::function<void(const std::string&)> abort;
    std::shared_ptr<OperationLog> log;
    ReportFailure report;
    // Elements given to one MPI call, at most 1 GiB: counts are int, and inside of some MPIs bytes
    // are. Larger tensors take several calls.
    int64_t most_elements = int64_t{1} << 27;
  };

  // Takes over comm, which is freed at the end.
  MpiCommunicator(std::string name, MPI_Comm comm, int rank, int size,
                  std::shared_ptr<const Job> job);
  ~MpiCommunicator() override;

  void abort(const std::string& reason) override { job_->abort(reason); }

 protected:
  Work start_one(const Request& request) override;
  void run_barrier(const LoggedCall& call) override;
  void report(const LoggedCall& call, const std::string& cause) override;
  std::unique_ptr<Communicator> run_split(int color, int key, const LoggedCall& call) override;

 private:
  struct Range {
    int64_t begin, count;
  };
  // fn(first element, element count, request) for each piece that one MPI call takes.
  template <typename Fn>
  void in_pieces(Transfer& transfer, Range elements, Fn fn);
  void post(Transfer& transfer, const Operation& o);
  void post_all_gather(Transfer& transfer, const Operation& o);
  void post_reduce_scatter(Transfer& transfer, const Operation& o);
  void post_all_to_all(Transfer& transfer, const Operation& o);
  void post_send(Transfer& transfer, Range elements, const at::Tensor& tensor, int peer, int tag);
  void post_receive(Transfer& transfer, Range elements, const at::Tensor& tensor, int peer,
                    int tag);
  Work launch(std::shared_ptr<Transfer> transfer, const LoggedCall& call);

  MPI_Comm comm_;
  std::shared_ptr<const Job> job_;
  Runtime& runtime_;
};

}  // namespace tessera::mpi
