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
  // State shared by the communicators of one job.
  struct Job {
    std::shared_ptr<AbortSignal> signal;
    std::function<void(const std::string&)> abort;
    std::shared_ptr<OperationLog> log;
    ReportFailure report;
    // Elements per MPI call, at most 1 GiB: counts are int, and some MPIs use int for bytes. Larger
    // tensors take several calls.
    int64_t most_elements = int64_t{1} << 27;
  };

  // Takes ownership of comm, which is freed in the destructor.
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
  // Calls fn(first element, element count, request) for each MPI call.
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
