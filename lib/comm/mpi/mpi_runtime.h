// SPDX-License-Identifier: MIT
#pragma once
// The MPI library of this process: initialisation, the lock around its calls, progress of what is
// under way.
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

// Throws Error(kUnavailable) with MPI's own text.
void check_mpi(int rc, const char* call);

// What the program that tessera is part of has done to MPI.
bool is_initialised();
bool is_finalised();  // for good: it cannot be initialised again

int64_t received_bytes(const MPI_Status& status);

MPI_Datatype mpi_type(at::ScalarType dtype);  // fp16 and bf16 travel as 16-bit words

// An operation under way: its requests and the tensors they use.
struct Transfer {
  LoggedCall call;
  std::vector<MPI_Request> requests;
  std::vector<at::Tensor> tensors;
  std::function<void()> on_done;  // runs once, under the lock
  bool done = false;
  std::vector<int64_t> expected_bytes;  // of the first requests, which receive
  std::string error;
};

class Runtime {
 public:
  // The one of this process, running; one that ran before may be asked for with the lock held.
  // Initialises MPI unless the program has. Throws Error(kInvalidArgument) where MPI cannot serve.
  static Runtime& instance();
  // Why MPI cannot serve this process; empty when it can.
  static std::string unusable_because();
  // Ends the progress thread, where it runs; and, when no rank has failed, MPI, if it was
  // initialised here.
  static void close(bool clean);

  // Every MPI call happens while this is held: one thread at a time.
  std::mutex& mutex() { return mutex_; }

  // Hands a started operation over; it is driven to its end even when nobody waits for it. Lock not
  // held.
  void add(std::shared_ptr<Transfer> operation);
  // Blocks until the operation is done, well or with its error; false after the timeout. Throws when
  // the signal is raised first (the tensors then stay with the runtime).
  bool wait(Transfer& operation, const AbortSignal& signal, std::chrono::seconds timeout);

  // Reductions that MPI has not or not with our rules: halves through fp32, NaN passed on by max
  // and min.
  MPI_Op reduction(at::ScalarType dtype, ReduceOp op);

 private:
  static Runtime& only();
  void open();
  void stop(bool clean);
  bool test(Transfer& operation);  // lock held
  void drive();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Transfer>> pending_;
  std::vector<MPI_Op> own_reductions_;
  bool initialised_here_ = false;
  std::atomic<bool> running_{false};
  bool broken_ = false;  // Open MPI's progress may crash after a collective that failed
  std::thread driver_;
};

}  // namespace tessera::mpi
