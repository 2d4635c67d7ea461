// SPDX-License-Identifier: MIT
#pragma once
// The process's MPI library: initialisation, the lock around its calls, progress of pending
// operations.
#include <ATen/core/Tensor.h>
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lib/comm/control/abort_signal.h"
#include "lib/comm/operation_log.h"
#include "tessera/comm/communicator.h"

namespace tessera::mpi {

// Throws Error(kUnavailable) with MPI's own message.
void check_mpi(int rc, const char* call);

// State of MPI in this process, whoever changed it.
bool is_initialised();
bool is_finalised();  // MPI cannot be initialised again

int64_t received_bytes(const MPI_Status& status);

MPI_Datatype mpi_type(at::ScalarType dtype);  // fp16 and bf16 travel as 16-bit words

// A pending operation: its requests and the tensors they use.
struct Transfer {
  LoggedCall call;
  std::vector<MPI_Request> requests;
  std::vector<at::Tensor> tensors;
  std::function<void()> on_done;  // runs once, with the lock held
  bool done = false;
  std::vector<int64_t> expected_bytes;  // bytes of the first requests, which receive
  std::string error;
};

class Runtime {
 public:
  // The running instance of this process. Call without the lock unless it runs already.
  // Initialises MPI unless the program has. Throws Error(kInvalidArgument) where MPI is unusable.
  static Runtime& instance();
  // Why MPI is unusable in this process; empty when it is usable.
  static std::string unusable_because();
  // Ends the progress thread if it runs. Finalises MPI if it was initialised here and no rank has
  // failed.
  static void close(bool clean);

  // Held during every MPI call.
  std::mutex& mutex() { return mutex_; }

  // Hands over a started operation, which is then driven to completion even if nobody waits. Call
  // without the lock.
  void add(std::shared_ptr<Transfer> operation);
  // Blocks until the operation ends, successfully or not; false after the timeout. Throws when the
  // signal is raised first; the tensors then stay with the runtime.
  bool wait(Transfer& operation, const AbortSignal& signal, std::chrono::seconds timeout);

  // Custom reductions: 16-bit floats through fp32; max and min that propagate NaN.
  MPI_Op reduction(at::ScalarType dtype, ReduceOp op);

 private:
  static Runtime& only();
  void open();
  void stop(bool clean);
  bool test(Transfer& operation);  // call with the lock held
  void drive();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Transfer>> pending_;
  std::vector<MPI_Op> own_reductions_;
  bool initialised_here_ = false;
  std::atomic<bool> running_{false};
  bool broken_ = false;  // Open MPI's progress may crash after a failed collective
  std::thread driver_;
};

}  // namespace tessera::mpi
