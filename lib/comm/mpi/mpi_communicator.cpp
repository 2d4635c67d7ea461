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
  MpiWork(Runtime& runtime, std::shared_ptr<Transfer> transfer,
          std::shared_ptr<const MpiCommunicator::Job> job)
      : runtime_(runtime), transfer_(std::move(transfer)), job_(std::move(job)) {}
  void wait() override {
    const PhaseScope phase(Phase::kCommunication);
    const bool in_time = runtime_.wait(*transfer_, *job_->signal, collective_timeout());
    if (in_time && transfer_->error.empty()) return;
    job_->report(transfer_->call, in_time ? transfer_->error : "");
    job_->signal->throw_if_raised();
  }

 private:
  Runtime& runtime_;
  std::shared_ptr<Transfer> transfer_;
  std::shared_ptr<const MpiCommunicator::Job> job_;
};

char* element(const at::Tensor& tensor, int64_t index) {
  return static_cast<char*>(tensor.data_ptr()) + index * static_cast<int64_t>(tensor.itemsize());
}

constexpr int kMessageTag = 1, kAllToAllTag = 2;

}  // namespace

MpiCommunicator::MpiCommunicator(std::string name, MPI_Comm comm, int rank, int size,
                                 std::shared_ptr<const Job> job)
    : CommunicatorBase("mpi", std::move(name), at::kCPU, rank, size, job->log),
      comm_(comm),
      job_(std::move(job)),
      runtime_(Runtime::instance()) {}

MpiCommunicator::~MpiCommunicator() {
  // Skipped after a failure: freeing would wait for operations that never end.
  if (job_->signal->raised() || std::uncaught_exceptions() > 0) return;
  std::lock_guard lock(runtime_.mutex());
  if (!is_finalised()) MPI_Comm_free(&comm_);
}

template <typename Fn>
void MpiCommunicator::in_pieces(Transfer& transfer, Range elements, Fn fn) {
  job_->signal->throw_if_raised();
  std::lock_guard lock(runtime_.mutex());
  const int64_t end = elements.begin + elements.count;
  for (int64_t begin = elements.begin; begin < end; begin += job_->most_elements) {
    const int64_t count = std::min(job_->most_elements, end - begin);
    transfer.requests.push_back(MPI_REQUEST_NULL);
    fn(begin, static_cast<int>(count), &transfer.requests.back());
  }
}

Work MpiCommunicator::launch(std::shared_ptr<Transfer> transfer, const LoggedCall& call) {
  transfer->call = call;
  transfer->call.started();
  runtime_.add(transfer);
  return Work(std::make_shared<MpiWork>(runtime_, std::move(transfer), job_));
}

Work MpiCommunicator::start_one(const Request& request) {
  auto transfer = std::make_shared<Transfer>();
  const Operation& o = *request.operation;
  for (const at::Tensor& tensor : {o.output, o.input}) {
    if (tensor.defined()) transfer->tensors.push_back(tensor);
  }
  post(*transfer, o);
  return launch(std::move(transfer), request.call);
}

void MpiCommunicator::post(Transfer& transfer, const Operation& o) {
  const at::Tensor& tensor = o.tensor();
  const Range all{0, tensor.numel()};
  const at::ScalarType dtype = tensor.scalar_type();
  switch (o.kind) {
    case OperationKind::kAllReduce:
      return in_pieces(transfer, all, [&](int64_t begin, int count, MPI_Request* request) {
        check_mpi(MPI_Iallreduce(MPI_IN_PLACE, element(tensor, begin), count, mpi_type(dtype),
                                 runtime_.reduction(dtype, o.reduce), comm_, request),
                  "MPI_Iallreduce");
      });
    case OperationKind::kBroadcast:
      return in_pieces(transfer, all, [&](int64_t begin, int count, MPI_Request* request) {
        check_mpi(
            MPI_Ibcast(element(tensor, begin), count, mpi_type(dtype), o.peer, comm_, request),
            "MPI_Ibcast");
      });
    case OperationKind::kAllGather:
      return post_all_gather(transfer, o);
    case OperationKind::kReduceScatter:
      return post_reduce_scatter(transfer, o);
    case OperationKind::kAllToAll:
      return post_all_to_all(transfer, o);
    case OperationKind::kSend:
      return post_send(transfer, all, tensor, o.peer, kMessageTag);
    case OperationKind::kRecv:
      return post_receive(transfer, all, tensor, o.peer, kMessageTag);
    case OperationKind::kBarrier:
      return;
  }
}

void MpiCommunicator::post_all_gather(Transfer& transfer, const Operation& o) {
  // In place: a separate input is first copied to its part of the output.
  const int64_t part = o.input.numel();
  char* own = element(o.output, rank() * part);
  if (o.input.const_data_ptr() != own && part > 0) {
    std::memcpy(own, o.input.const_data_ptr(), o.input.nbytes());
  }
  in_pieces(transfer, {0, part}, [&](int64_t begin, int count, MPI_Request* request) {
    // One element is a rank's piece; consecutive ranks' pieces lie a whole part apart.
    MPI_Datatype piece, spaced;
    check_mpi(MPI_Type_contiguous(count, mpi_type(o.input.scalar_type()), &piece),
              "MPI_Type_contiguous");
    check_mpi(MPI_Type_create_resized(piece, 0, static_cast<MPI_Aint>(o.input.nbytes()), &spaced),
              "MPI_Type_create_resized");
    check_mpi(MPI_Type_commit(&spaced), "MPI_Type_commit");
    check_mpi(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, element(o.output, begin), 1,
                             spaced, comm_, request),
              "MPI_Iallgather");
    MPI_Type_free(&piece);
    MPI_Type_free(&spaced);  // freed by MPI when the operation completes
  });
}

void MpiCommunicator::post_reduce_scatter(Transfer& transfer, const Operation& o) {
  const at::ScalarType dtype = o.output.scalar_type();
  const int64_t part = o.output.numel();
  const bool aliased = o.output.const_data_ptr() == element(o.input, rank() * part);
  const at::Tensor result = aliased ? o.output.clone() : o.output;  // MPI reads the whole input
  transfer.tensors.push_back(result);
  if (part <= job_->most_elements / size()) {
    in_pieces(transfer, {0, part}, [&](int64_t, int count, MPI_Request* request) {
      check_mpi(MPI_Ireduce_scatter_block(o.input.const_data_ptr(), result.data_ptr(), count,
                                          mpi_type(dtype), runtime_.reduction(dtype, o.reduce),
                                          comm_, request),
                "MPI_Ireduce_scatter_block");
    });
  } else {
    for (int root = 0; root < size(); ++root) {
      in_pieces(transfer, {0, part}, [&](int64_t begin, int count, MPI_Request* request) {
        check_mpi(
            MPI_Ireduce(element(o.input, root * part + begin), element(result, begin), count,
                        mpi_type(dtype), runtime_.reduction(dtype, o.reduce), root, comm_, request),
            "MPI_Ireduce");
      });
    }
  }
  if (aliased) {
    transfer.on_done = [output = o.output, result] {
      std::memcpy(output.data_ptr(), result.const_data_ptr(), output.nbytes());
    };
  }
}

// One message per pair: MPI_Alltoallv's counts and displacements are int.
void MpiCommunicator::post_all_to_all(Transfer& transfer, const Operation& o) {
  const PartRanges from(o.output, o.output_counts, size()), to(o.input, o.input_counts, size());
  for (int i = 1; i < size(); ++i) {
    const int r = (rank() + i) % size();
    post_receive(transfer, {from.begin(r), from.count(r)}, o.output, r, kAllToAllTag);
  }
  for (int i = 1; i < size(); ++i) {
    const int r = (rank() + i) % size();
    post_send(transfer, {to.begin(r), to.count(r)}, o.input, r, kAllToAllTag);
  }
  const auto bytes = static_cast<size_t>(to.count(rank())) * o.input.itemsize();
  if (bytes == 0) return;
  std::memcpy(element(o.output, from.begin(rank())), element(o.input, to.begin(rank())), bytes);
}

void MpiCommunicator::post_send(Transfer& transfer, Range elements, const at::Tensor& tensor,
                                int peer, int tag) {
  in_pieces(transfer, elements, [&](int64_t begin, int count, MPI_Request* request) {
    check_mpi(MPI_Isend(element(tensor, begin), count, mpi_type(tensor.scalar_type()), peer, tag,
                        comm_, request),
              "MPI_Isend");
  });
}

void MpiCommunicator::post_receive(Transfer& transfer, Range elements, const at::Tensor& tensor,
                                   int peer, int tag) {
  in_pieces(transfer, elements, [&](int64_t begin, int count, MPI_Request* request) {
    check_mpi(MPI_Irecv(element(tensor, begin), count, mpi_type(tensor.scalar_type()), peer, tag,
                        comm_, request),
              "MPI_Irecv");
    transfer.expected_bytes.push_back(count * static_cast<int64_t>(tensor.itemsize()));
  });
}

void MpiCommunicator::report(const LoggedCall& call, const std::string& cause) {
  job_->report(call, cause);
  job_->signal->throw_if_raised();
}

void MpiCommunicator::run_barrier(const LoggedCall& call) {
  auto transfer = std::make_shared<Transfer>();
  in_pieces(*transfer, {0, 1}, [&](int64_t, int, MPI_Request* request) {
    check_mpi(MPI_Ibarrier(comm_, request), "MPI_Ibarrier");
  });
  launch(std::move(transfer), call).wait();
}

std::unique_ptr<Communicator> MpiCommunicator::run_split(int color, int key,
                                                         const LoggedCall& call) {
  run_barrier(call);  // a barrier first: MPI_Comm_split cannot be interrupted
  MPI_Comm split = MPI_COMM_NULL;
  int rank = 0;
  int size = 0;
  std::lock_guard lock(runtime_.mutex());
  check_mpi(MPI_Comm_split(comm_, color, key, &split), "MPI_Comm_split");
  check_mpi(MPI_Comm_set_errhandler(split, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(split, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(split, &size), "MPI_Comm_size");
  return std::make_unique<MpiCommunicator>(name_of_part(color), split, rank, size, job_);
}

}  // namespace tessera::mpi
