// SPDX-License-Identifier: MIT
#include "lib/comm/communicator_base.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>

#include "tessera/core/error.h"
#include "tessera/core/phase_clock.h"

namespace tessera {
namespace {

class JoinedWorks final : public Work::Impl {
 public:
  explicit JoinedWorks(std::vector<Work> works) : works_(std::move(works)) {}
  void wait() override {
    const PhaseScope phase(Phase::kCommunication);  // one wait
    for (Work& work : works_) work.wait();
  }

 private:
  std::vector<Work> works_;
};

bool is_supported(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kLong:
    case at::kInt:
    case at::kChar:
    case at::kByte:
      return true;
    default:
      return false;
  }
}

// What a collective of one rank does.
Work pass_on(const at::Tensor& output, const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  if (output.const_data_ptr() != input.const_data_ptr()) output.copy_(input.view_as(output));
  return Work();
}

const char* suffix_of(ReduceOp op) {
  constexpr const char* kSuffixes[] = {", sum", ", max", ", min"};
  return kSuffixes[static_cast<size_t>(op)];
}

int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

// May the smaller tensor of a gather or scatter share memory with the larger one? Only as its own
// part.
void check_overlap(const at::Tensor& whole, const at::Tensor& part, int rank,
                   const char* operation) {
  const char* whole_begin = static_cast<const char*>(whole.const_data_ptr());
  const char* part_begin = static_cast<const char*>(part.const_data_ptr());
  const bool apart =
      part_begin + part.nbytes() <= whole_begin || whole_begin + whole.nbytes() <= part_begin;
  const bool own_part = part_begin == whole_begin + rank * part.nbytes();
  check(apart || own_part, ErrorCode::kInvalidArgument, operation,
        ": the tensors overlap, but the smaller one is not part ", rank,
        " (this rank's) of the larger one; give it memory of its own or use that part");
}

}  // namespace

Work join_works(std::vector<Work> works) {
  std::erase_if(works, [](const Work& work) { return !work.pending(); });
  if (works.empty()) return Work();
  if (works.size() == 1) return works.front();
  return Work(std::make_shared<JoinedWorks>(std::move(works)));
}

CommunicatorBase::CommunicatorBase(std::string transport, std::string name, at::Device device,
                                   int rank, int size, std::shared_ptr<OperationLog> log)
    : transport_(std::move(transport)),
      name_(std::move(name)),
      device_(device),
      rank_(rank),
      size_(size),
      log_(std::move(log)),
      place_(log_->join(name_, rank, size)),
      sent_(size, 0),
      received_(size, 0) {}

CommunicatorBase::~CommunicatorBase() { log_->leave(place_); }

std::string CommunicatorBase::name_of_part(int color) {
  return concat(name_, ".", splits_++, "c", color);
}

void CommunicatorBase::note(CallDescription call) {
  if (call.source < 0) call.sequence = collectives_++;
  call_ = LoggedCall(log_, log_->add(place_, call));
}

void CommunicatorBase::note(const char* operation, const at::Tensor& tensor, const char* suffix,
                            int root) {
  note({.operation = operation,
        .suffix = suffix,
        .dtype = tensor.scalar_type(),
        .count = tensor.numel(),
        .root = root});
}

void CommunicatorBase::note_message(const char* operation, const at::Tensor& tensor, int source,
                                    int destination, int64_t& messages) {
  note({.operation = operation,
        .dtype = tensor.scalar_type(),
        .count = tensor.numel(),
        .sequence = messages++,
        .source = source,
        .destination = destination});
}

void CommunicatorBase::check_tensor(const at::Tensor& tensor, const char* operation) const {
  check(tensor.defined(), ErrorCode::kInvalidArgument, operation, ": the tensor is undefined");
  check(tensor.device() == device_, ErrorCode::kInvalidArgument, operation,
        ": the tensor lives on ", tensor.device(), ", the ", transport_, " communicator on ",
        device_, "; move the tensor there");
  check(tensor.is_contiguous(), ErrorCode::kInvalidArgument, operation,
        ": the tensor is not contiguous; pass tensor.contiguous()");
  check(is_supported(tensor.scalar_type()), ErrorCode::kInvalidArgument, operation, ": dtype ",
        tensor.scalar_type(),
        " is not one of float32, float64, float16, bfloat16, int64, int32, int8, uint8");
}

void CommunicatorBase::check_rank(int rank, const char* operation, const char* role) const {
  check(0 <= rank && rank < size_, ErrorCode::kInvalidArgument, operation, ": ", role, " ", rank,
        " is not a rank of this communicator; it has ranks 0 to ", size_ - 1);
}

Work CommunicatorBase::collect(Work work, int64_t bytes) {
  bytes_sent_ += bytes;
  if (!grouping_) return work;
  group_.push_back(std::move(work));
  return Work();
}

Work CommunicatorBase::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  check_tensor(tensor, "all_reduce");
  if (size_ == 1) return Work();
  note("all_reduce", tensor, suffix_of(op));
  return collect(start_all_reduce(tensor, op), 2 * (size_ - 1) * bytes_of(tensor) / size_);
}

Work CommunicatorBase::all_gather(const at::Tensor& output, const at::Tensor& input) {
  check_tensor(output, "all_gather");
  check_tensor(input, "all_gather");
  check(output.numel() == size_ * input.numel() && output.scalar_type() == input.scalar_type(),
        ErrorCode::kInvalidArgument, "all_gather: the output has ", output.numel(), " elements of ",
        output.scalar_type(), ", expected ", size_, " ranks x ", input.numel(), " elements of ",
        input.scalar_type());
  check_overlap(output, input, rank_, "all_gather");
  if (size_ == 1) return pass_on(output, input);
  note("all_gather", input);
  return collect(start_all_gather(output, input), (size_ - 1) * bytes_of(input));
}

Work CommunicatorBase::reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                      ReduceOp op) {
  check_tensor(output, "reduce_scatter");
  check_tensor(input, "reduce_scatter");
  check(input.numel() == size_ * output.numel() && output.scalar_type() == input.scalar_type(),
        ErrorCode::kInvalidArgument, "reduce_scatter: the input has ", input.numel(),
        " elements of ", input.scalar_type(), ", expected ", size_, " ranks x ", output.numel(),
        " elements of ", output.scalar_type());
  check_overlap(input, output, rank_, "reduce_scatter");
  if (size_ == 1) return pass_on(output, input);
  note("reduce_scatter", output, suffix_of(op));
  return collect(start_reduce_scatter(output, input, op), (size_ - 1) * bytes_of(output));
}

Work CommunicatorBase::broadcast(const at::Tensor& tensor, int root) {
  check_tensor(tensor, "broadcast");
  check_rank(root, "broadcast", "root");
  if (size_ == 1) return Work();
  note("broadcast", tensor, "", root);
  return collect(start_broadcast(tensor, root), bytes_of(tensor));
}

Work CommunicatorBase::send(const at::Tensor& tensor, int destination) {
  check_tensor(tensor, "send");
  check_rank(destination, "send", "destination");
  check(destination != rank_, ErrorCode::kInvalidArgument, "send: rank ", rank_,
        " cannot send to itself; copy the tensor instead");
  note_message("send", tensor, rank_, destination, sent_[destination]);
  return collect(start_send(tensor, destination), bytes_of(tensor));
}

Work CommunicatorBase::recv(const at::Tensor& tensor, int source) {
  check_tensor(tensor, "recv");
  check_rank(source, "recv", "source");
  check(source != rank_, ErrorCode::kInvalidArgument, "recv: rank ", rank_,
        " cannot receive from itself; copy the tensor instead");
  note_message("recv", tensor, source, rank_, received_[source]);
  return collect(start_recv(tensor, source), 0);
}

void CommunicatorBase::barrier() {
  check(!grouping_, ErrorCode::kInvalidArgument, "barrier: not allowed inside a group");
  note({.operation = "barrier"});
  run_barrier();
}

void CommunicatorBase::refuse(const LoggedCall& call) {
  report(call, "the calls of the ranks differ");
  fail(ErrorCode::kInternal, "a failure was reported, but nobody heard of it");
}

void CommunicatorBase::begin_group() {
  check(!grouping_, ErrorCode::kInvalidArgument, "begin_group: groups do not nest");
  open_group();
  grouping_ = true;
}

Work CommunicatorBase::end_group() {
  check(grouping_, ErrorCode::kInvalidArgument, "end_group: there was no begin_group");
  grouping_ = false;
  return close_group(std::exchange(group_, {}));
}

std::unique_ptr<Communicator> CommunicatorBase::split(int color, int key) {
  check(!grouping_, ErrorCode::kInvalidArgument, "split: not allowed inside a group");
  check(color >= 0, ErrorCode::kInvalidArgument, "split: color ", color, " is negative");
  note({.operation = "split"});
  auto part = run_split(color, key);
  call_.ended();
  return part;
}

CommunicatorBase::Part CommunicatorBase::agree_on_part(int color, int key) {
  const at::Tensor mine = at::tensor({int64_t{color}, int64_t{key}}, at::kLong);
  const at::Tensor all = at::empty({size(), 2}, at::kLong);
  start_all_gather(all, mine).wait();
  std::vector<std::pair<int64_t, int>> members;  // key, rank
  for (int r = 0; r < size(); ++r) {
    const int64_t* choice = all.const_data_ptr<int64_t>() + 2 * r;
    if (choice[0] == color) members.emplace_back(choice[1], r);
  }
  std::sort(members.begin(), members.end());
  Part part;
  for (const auto& [order, r] : members) {
    if (r == rank()) part.rank = static_cast<int>(part.ranks.size());
    part.ranks.push_back(r);
  }
  return part;
}

}  // namespace tessera
