// SPDX-License-Identifier: MIT
#include "lib/comm/mpi/mpi_communicator.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "lib/comm/collective_timeout.h"
#include "tessera/core/error.h"
#include "tessera/core/phase_clock.h"

namespace tessera::mpi {
namespace {

class MpiWork final : public Work::Impl {
 public:
  MpiWork(Runtime& runtime, std::shared_ptr<Operation> operation,
          std::shared_ptr<const MpiCommunicator::Job> job)
      : runtime_(runtime), operation_(std::move(operation)), job_(std::move(job)) {}
  void wait() override {
    const PhaseScope phase(Phase::kCommunication);
    const bool in_time = runtime_.wait(*operation_, *job_->signal, collective_timeout());
    if (in_time && operation_->error.empty()) return;
    job_->report(operation_->call, in_time ? operation_->error : "");
    job_->signal->throw_if_raised();
  }

 private:
  Runtime& runtime_;
  std::shared_ptr<Operation> operation_;
  std::shared_ptr<const MpiCommunicator::Job> job_;
};

char* element(const at::Tensor& tensor, int64_t index) {
  return static_cast<char*>(tensor.data_ptr()) + index * static_cast<int64_t>(tensor.itemsize());
}

std::shared_ptr<Operation> operation_on(std::vector<at::Tensor> tensors) {
  auto operation = std::make_shared<Operation>();
  operation->tensors = std::move(tensors);
  return operation;
}

constexpr int kMessageTag = 1;

}  // namespace

MpiCommunicator::MpiCommunicator(std::string name, MPI_Comm comm, int rank, int size,
                                 std::shared_ptr<const Job> job)
    : CommunicatorBase("mpi", std::move(name), at::kCPU, rank, size, job->log),
      comm_(comm),
      job_(std::move(job)),
      runtime_(Runtime::instance()) {}

MpiCommunicator::~MpiCommunicator() {
  // Freeing waits for operations that will never end once a rank has failed.
  if (job_->signal->raised() || std::uncaught_exceptions() > 0) return;
  std::lock_guard lock(runtime_.mutex());
  if (!is_finalised()) MPI_Comm_free(&comm_);
}

template <typename Fn>
void MpiCommunicator::in_pieces(Operation& operation, int64_t elements, Fn fn) {
  job_->signal->throw_if_raised();
  std::lock_guard lock(runtime_.mutex());
  for (int64_t begin = 0; begin < elements; begin += job_->most_elements) {
    const int64_t count = std::min(job_->most_elements, elements - begin);
    operation.requests.push_back(MPI_REQUEST_NULL);
    fn(begin, static_cast<int>(count), &operation.requests.back());
  }
}

Work MpiCommunicator::launch(std::shared_ptr<Operation> operation) {
  operation->call = call();
  operation->call.started();
  runtime_.add(operation);
  return Work(std::make_shared<MpiWork>(runtime_, std::move(operation), job_));
}

Work MpiCommunicator::start_all_reduce(const at::Tensor& tensor, ReduceOp op) {
  auto operation = operation_on({tensor});
  const at::ScalarType dtype = tensor.scalar_type();
  in_pieces(*operation, tensor.numel(), [&](int64_t begin, int count, MPI_Request* request) {
    check_mpi(MPI_Iallreduce(MPI_IN_PLACE, element(tensor, begin), count, mpi_type(dtype),
                             runtime_.reduction(dtype, op), comm_, request),
              "MPI_Iallreduce");
  });
  return launch(std::move(operation));
}

Work MpiCommunicator::start_all_gather(const at::Tensor& output, const at::Tensor& input) {
  // Always in place: an input of its own is first copied to its part of the output.
  char* own = element(output, rank() * input.numel());
  if (input.const_data_ptr() != own && input.numel() > 0) {
    std::memcpy(own, input.const_data_ptr(), input.nbytes());
  }
  auto operation = operation_on({output});
  const int64_t part_bytes = static_cast<int64_t>(input.nbytes());
  in_pieces(*operation, input.numel(), [&](int64_t begin, int count, MPI_Request* request) {
    // One element of this type is a rank's piece; the next rank's is a whole part further.
    MPI_Datatype piece, spaced;
    check_mpi(MPI_Type_contiguous(count, mpi_type(input.scalar_type()), &piece),
              "MPI_Type_contiguous");
    check_mpi(MPI_Type_create_resized(piece, 0, part_bytes, &spaced), "MPI_Type_create_resized");
    check_mpi(MPI_Type_commit(&spaced), "MPI_Type_commit");
    check_mpi(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, element(output, begin), 1, spaced,
                             comm_, request),
              "MPI_Iallgather");
    MPI_Type_free(&piece);
    MPI_Type_free(&spaced);  // freed by MPI when the operation is over
  });
  return launch(std::move(operation));
}

Work MpiCommunicator::start_reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                           ReduceOp op) {
  const at::ScalarType dtype = output.scalar_type();
  const int64_t part = output.numel();
  const bool aliased = output.const_data_ptr() == element(input, rank() * part);
  const at::Tensor result = aliased ? output.clone() : output;  // MPI reads the whole input
  auto operation = operation_on({output, input, result});
  if (part <= job_->most_elements / size()) {
    in_pieces(*operation, part, [&](int64_t, int count, MPI_Request* request) {
      check_mpi(
          MPI_Ireduce_scatter_block(input.const_data_ptr(), result.data_ptr(), count,
                                    mpi_type(dtype), runtime_.reduction(dtype, op), comm_, request),
          "MPI_Ireduce_scatter_block");
    });
  } else {
    for (int root = 0; root < size(); ++root) {
      in_pieces(*operation, part, [&](int64_t begin, int count, MPI_Request* request) {
        check_mpi(MPI_Ireduce(element(input, root * part + begin), element(result, begin), count,
                              mpi_type(dtype), runtime_.reduction(dtype, op), root, comm_, request),
                  "MPI_Ireduce");
      });
    }
  }
  if (aliased) {
    operation->on_done = [output, result] {
      std::memcpy(output.data_ptr(), result.const_data_ptr(), output.nbytes());
    };
  }
  return launch(std::move(operation));
}

Work MpiCommunicator::start_broadcast(const at::Tensor& tensor, int root) {
  auto operation = operation_on({tensor});
  in_pieces(*operation, tensor.numel(), [&](int64_t begin, int count, MPI_Request* request) {
    check_mpi(MPI_Ibcast(element(tensor, begin), count, mpi_type(tensor.scalar_type()), root, comm_,
                         request),
              "MPI_Ibcast");
  });
  return launch(std::move(operation));
}

Work MpiCommunicator::start_send(const at::Tensor& tensor, int destination) {
  auto operation = operation_on({tensor});
  in_pieces(*operation, tensor.numel(), [&](int64_t begin, int count, MPI_Request* request) {
    check_mpi(MPI_Isend(element(tensor, begin), count, mpi_type(tensor.scalar_type()), destination,
                        kMessageTag, comm_, request),
              "MPI_Isend");
  });
  return launch(std::move(operation));
}

Work MpiCommunicator::start_recv(const at::Tensor& tensor, int source) {
  auto operation = operation_on({tensor});
  operation->expected_bytes = static_cast<int64_t>(tensor.nbytes());
  in_pieces(*operation, tensor.numel(), [&](int64_t begin, int count, MPI_Request* request) {
    check_mpi(MPI_Irecv(element(tensor, begin), count, mpi_type(tensor.scalar_type()), source,
                        kMessageTag, comm_, request),
              "MPI_Irecv");
  });
  return launch(std::move(operation));
}

void MpiCommunicator::report(const LoggedCall& call, const std::string& cause) {
  job_->report(call, cause);
  job_->signal->throw_if_raised();
}

void MpiCommunicator::run_barrier() {
  auto operation = std::make_shared<Operation>();
  in_pieces(*operation, 1, [&](int64_t, int, MPI_Request* request) {
    check_mpi(MPI_Ibarrier(comm_, request), "MPI_Ibarrier");
  });
  launch(std::move(operation)).wait();
}

std::unique_ptr<Communicator> MpiCommunicator::run_split(int color, int key) {
  run_barrier();  // MPI_Comm_split cannot be interrupted: enter it only when all are here
  MPI_Comm split = MPI_COMM_NULL;
  int rank = 0;
  int size = 0;
  std::lock_guard lock(runtime_.mutex());
  check_mpi(MPI_Comm_split(comm_, color, key, &split), "MPI_Comm_split");
  check_mpi(MPI_Comm_set_errhandler(split, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(split, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(split, &size), "MPI_Comm_size");
  return std::make_unique<MpiCommunicator>(name_of_part(color), split, rank,
                                           size, job_);
}

}  // namespace tessera::mpi
