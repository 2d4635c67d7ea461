// SPDX-License-Identifier: MIT
#include "lib/comm/communicator_base.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "lib/core/vector_math.h"
#include "tessera/core/error.h"
#include "tessera/core/phase_clock.h"

namespace tessera {
namespace {

class JoinedWorks final : public Work::Impl {
 public:
  explicit JoinedWorks(std::vector<Work> works) : works_(std::move(works)) {}
  void wait() override {
    const PhaseScope phase(Phase::kCommunication);  // one phase entry for the whole wait
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

// Copies input to output: any collective on a single rank.
void pass_on(const at::Tensor& output, const at::Tensor& input) {
  if (!input.defined() || output.const_data_ptr() == input.const_data_ptr()) return;
  const at::NoGradGuard no_grad;
  output.copy_(input.view_as(output));
}

const char* suffix_of(ReduceOp op) {
  constexpr const char* kSuffixes[] = {", sum", ", max", ", min"};
  return kSuffixes[static_cast<size_t>(op)];
}

int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

int64_t sum_of(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

bool reduces(OperationKind kind) {
  return kind == OperationKind::kAllReduce || kind == OperationKind::kReduceScatter;
}

// Meta tensors of different storages never overlap; their addresses mean nothing.
bool may_overlap(const at::Tensor& a, const at::Tensor& b) {
  return !a.is_meta() || a.is_alias_of(b);
}

// Throws where the smaller tensor of a gather or scatter overlaps the larger one, unless it is its
// own part there.
void check_overlap(const at::Tensor& whole, const at::Tensor& part, int rank,
                   const char* operation) {
  if (!may_overlap(whole, part)) return;
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

CallDescription describe(const Operation& o) {
  CallDescription call{.operation = name_of(o.kind)};
  if (o.kind == OperationKind::kBarrier) return call;
  call.dtype = o.tensor().scalar_type();
  if (reduces(o.kind)) call.suffix = suffix_of(o.reduce);
  if (o.kind == OperationKind::kBroadcast) call.root = o.peer;
  const bool of_input = o.kind == OperationKind::kAllGather || o.kind == OperationKind::kAllToAll;
  call.count = (of_input ? o.input : o.tensor()).numel();
  if (!o.input_counts.empty()) {
    call.count = CallDescription::kOfEachRank;
    call.suffix = ", unequal parts";
  }
  return call;
}

int64_t bytes_sent_by(const Operation& o, int rank, int size) {
  switch (o.kind) {
    case OperationKind::kAllReduce:
      return 2 * (size - 1) * bytes_of(o.output) / size;
    case OperationKind::kAllGather:
      return (size - 1) * bytes_of(o.input);
    case OperationKind::kReduceScatter:
      return (size - 1) * bytes_of(o.output);
    case OperationKind::kAllToAll:
      return bytes_of(o.input) - PartRanges(o.input, o.input_counts, size).count(rank) *
                                     static_cast<int64_t>(o.input.itemsize());
    case OperationKind::kBroadcast:
      return bytes_of(o.output);
    case OperationKind::kSend:
      return bytes_of(o.input);
    case OperationKind::kRecv:
    case OperationKind::kBarrier:
      return 0;
  }
  return 0;
}

Work join_works(std::vector<Work> works) {
  std::erase_if(works, [](const Work& work) { return !work.pending(); });
  if (works.empty()) return Work();
  if (works.size() == 1) return works.front();
  return Work(std::make_shared<JoinedWorks>(std::move(works)));
}

PartRanges::PartRanges(const at::Tensor& tensor, const std::vector<int64_t>& counts, int ranks)
    : begins_{0} {
  for (int r = 0; r < ranks; ++r) {
    begins_.push_back(begins_.back() + (counts.empty() ? tensor.numel() / ranks : counts[r]));
  }
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
      received_(size, 0) {
  resolve_vector_math();  // a world of threads is made before they start
}

CommunicatorBase::~CommunicatorBase() { log_->leave(place_); }

std::string CommunicatorBase::name_of_part(int color) {
  return concat(name_, ".", splits_++, "c", color);
}

LoggedCall CommunicatorBase::note(CallDescription call, std::string_view label) {
  if (call.source < 0) call.sequence = collectives_++;
  return LoggedCall(log_, log_->add(place_, call, label));
}

LoggedCall CommunicatorBase::note(const Operation& o) {
  CallDescription call = describe(o);
  if (o.is_message()) {
    const bool sends = o.kind == OperationKind::kSend;
    call.source = sends ? rank_ : o.peer;
    call.destination = sends ? o.peer : rank_;
    call.sequence = (sends ? sent_ : received_)[o.peer]++;
  }
  return note(call, o.name);
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

// Checks an all_to_all's dtypes, counts and overlaps.
void CommunicatorBase::check_parts(const Operation& o) const {
  check(o.output.scalar_type() == o.input.scalar_type(), ErrorCode::kInvalidArgument,
        "all_to_all: the output is of ", o.output.scalar_type(), ", the input of ",
        o.input.scalar_type());
  const bool equal = o.output_counts.empty() && o.input_counts.empty();
  const auto check_side = [&](const char* side, const at::Tensor& tensor,
                              const std::vector<int64_t>& counts) {
    if (equal) {
      check(tensor.numel() % size_ == 0, ErrorCode::kInvalidArgument, "all_to_all: the ", side,
            " has ", tensor.numel(), " elements, which are no ", size_,
            " equal parts; give the counts of unequal ones");
      return;
    }
    check(static_cast<int>(counts.size()) == size_ &&
              std::ranges::all_of(counts, [](int64_t count) { return count >= 0; }),
          ErrorCode::kInvalidArgument, "all_to_all: ", counts.size(), " counts of the ", side,
          "'s parts; expected ", size_, ", none below 0");
    check(sum_of(counts) == tensor.numel(), ErrorCode::kInvalidArgument, "all_to_all: the ", side,
          " has ", tensor.numel(), " elements, its counts make ", sum_of(counts));
  };
  check_side("input", o.input, o.input_counts);
  check_side("output", o.output, o.output_counts);
  check(!equal || o.input.numel() == o.output.numel(), ErrorCode::kInvalidArgument,
        "all_to_all: the output has ", o.output.numel(), " elements, the input ", o.input.numel());
  const int64_t gives = PartRanges(o.input, o.input_counts, size_).count(rank_);
  const int64_t takes = PartRanges(o.output, o.output_counts, size_).count(rank_);
  check(gives == takes, ErrorCode::kInvalidArgument, "all_to_all: rank ", rank_, " gives itself ",
        gives, " elements and takes ", takes);
  const auto [out, in] = std::pair(static_cast<const char*>(o.output.const_data_ptr()),
                                   static_cast<const char*>(o.input.const_data_ptr()));
  const bool apart = out + o.output.nbytes() <= in || in + o.input.nbytes() <= out;
  check(apart || !may_overlap(o.output, o.input), ErrorCode::kInvalidArgument,
        "all_to_all: the tensors overlap; give the output memory of its own");
}

void CommunicatorBase::check_peer(const Operation& o, const char* role) const {
  check(0 <= o.peer && o.peer < size_, ErrorCode::kInvalidArgument, name_of(o.kind), ": ", role,
        " ", o.peer, " is not a rank of this communicator; it has ranks 0 to ", size_ - 1);
}

void CommunicatorBase::check_arguments(const Operation& o) const {
  const char* const name = name_of(o.kind);
  if (o.kind == OperationKind::kBarrier) return;
  const bool writes = o.kind != OperationKind::kSend;
  const bool reads = !writes || o.kind == OperationKind::kAllGather ||
                     o.kind == OperationKind::kReduceScatter || o.kind == OperationKind::kAllToAll;
  if (writes) check_tensor(o.output, name);
  if (reads) check_tensor(o.input, name);
  switch (o.kind) {
    case OperationKind::kAllGather:
    case OperationKind::kReduceScatter: {
      const bool gathers = o.kind == OperationKind::kAllGather;
      const at::Tensor& whole = gathers ? o.output : o.input;
      const at::Tensor& part = gathers ? o.input : o.output;
      check(whole.numel() == size_ * part.numel() && whole.scalar_type() == part.scalar_type(),
            ErrorCode::kInvalidArgument, name, ": the ", gathers ? "output" : "input", " has ",
            whole.numel(), " elements of ", whole.scalar_type(), ", expected ", size_, " ranks x ",
            part.numel(), " elements of ", part.scalar_type());
      check_overlap(whole, part, rank_, name);
      return;
    }
    case OperationKind::kAllToAll:
      return check_parts(o);
    case OperationKind::kBroadcast:
      return check_peer(o, "root");
    case OperationKind::kSend:
      check_peer(o, "destination");
      check(o.peer != rank_, ErrorCode::kInvalidArgument, "send: rank ", rank_,
            " cannot send to itself; copy the tensor instead");
      return;
    case OperationKind::kRecv:
      check_peer(o, "source");
      check(o.peer != rank_, ErrorCode::kInvalidArgument, "recv: rank ", rank_,
            " cannot receive from itself; copy the tensor instead");
      return;
    case OperationKind::kAllReduce:
    case OperationKind::kBarrier:
      return;
  }
}

Work CommunicatorBase::start(std::span<const Operation> operations) {
  for (const Operation& each : operations) check_arguments(each);
  c10::SmallVector<Request, 8> requests;
  for (const Operation& each : operations) {
    if (each.kind == OperationKind::kBarrier) {
      run_barrier(note(each));
    } else if (size_ == 1) {
      pass_on(each.output, each.input);
    } else {
      requests.push_back({&each, note(each)});
      bytes_sent_ += bytes_sent_by(each, rank_, size_);
    }
  }
  if (requests.empty()) return Work();
  return requests.size() == 1 ? start_one(requests.front())
                              : start_group({requests.data(), requests.size()});
}

Work CommunicatorBase::start_group(std::span<const Request> requests) {
  std::vector<Work> works;
  for (const Request& each : requests) works.push_back(start_one(each));
  return join_works(std::move(works));
}

void CommunicatorBase::refuse(const LoggedCall& call) {
  report(call, "the calls of the ranks differ");
  fail(ErrorCode::kInternal, "a failure was reported, but nobody heard of it");
}

std::unique_ptr<Communicator> CommunicatorBase::split(int color, int key) {
  check(!grouping(), ErrorCode::kInvalidArgument, "split: not allowed inside a group");
  check(color >= 0, ErrorCode::kInvalidArgument, "split: color ", color, " is negative");
  const LoggedCall call = note({.operation = "split"}, "");
  auto part = run_split(color, key, call);
  call.ended();
  return part;
}

CommunicatorBase::Part CommunicatorBase::agree_on_part(int color, int key, const LoggedCall& call) {
  const at::Tensor mine = at::tensor({int64_t{color}, int64_t{key}}, at::kLong);
  const at::Tensor all = at::empty({size(), 2}, at::kLong);
  const Operation gather{.kind = OperationKind::kAllGather, .output = all, .input = mine};
  start_one({&gather, call}).wait();
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
