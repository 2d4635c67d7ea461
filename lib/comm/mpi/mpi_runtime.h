#pragma once
// The MPI library of this process: initialisation, the lock around its calls, progress of what is
// under way.
#include <ATen/core/Tensor.h>
#include <mpi.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lib/comm/abort_signal.h"
#include "lib/comm/operation_log.h"
#include "tessera/comm/communicator.h"

namespace tessera::mpi {

// Throws Error(kUnavailable) with MPI's own text.
void check_mpi(int rc, const char* call);

MPI_Datatype mpi_type(at::ScalarType dtype);  // fp16 and bf16 travel as 16-bit words

// Requests of one operation with the tensors they use.
struct Operation {
  LoggedCall call;
  std::vector<MPI_Request> requests;
  std::vector<at::Tensor> tensors;
  std::function<void()> on_done;  // runs once, under the lock
  bool done = false;
  int64_t expected_bytes = -1;  // of a receive
  std::string error;
};

class Runtime {
 public:
  // The one of this process; initialises MPI on first use. MPI cannot be started again after
  // close().
  static Runtime& instance();

  // Every MPI call happens while this is held: one thread at a time.
  std::mutex& mutex() { return mutex_; }

  // Hands a started operation over; it is driven to its end even when nobody waits for it. Lock not
  // held.
  void add(std::shared_ptr<Operation> operation);
  // Blocks until the operation is done, well or with its error; false after the timeout. Throws when
  // the signal is raised first (the tensors then stay with the runtime).
  bool wait(Operation& operation, const AbortSignal& signal, std::chrono::seconds timeout);

  // Reductions that MPI has not or not with our rules: halves through fp32, NaN passed on by max
  // and min.
  MPI_Op reduction(at::ScalarType dtype, ReduceOp op);

  // Ends the progress thread and, when no rank has failed, MPI.
  void close(bool clean);

 private:
  Runtime();
  bool test(Operation& operation);  // lock held
  void drive();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Operation>> pending_;
  std::vector<MPI_Op> own_reductions_;
  bool stopping_ = false;
  bool broken_ = false;  // Open MPI's progress may crash after a collective that failed
  std::thread driver_;
};

}  // namespace tessera::mpi
