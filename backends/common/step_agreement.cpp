// SPDX-License-Identifier: MIT
#include "backends/common/step_agreement.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "backends/common/agreement.h"
#include "lib/comm/operation_scope.h"
#include "tessera/comm/control_channel.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr int kRanksOfPiece = 48;

// The sum over ranks of numbers with these weights is 0 when the numbers are equal.
int64_t weight(int rank, int ranks) { return rank == 0 ? ranks - 1 : -1; }

}  // namespace

// [Note: what ranks tell each other before a step]
// One sum over the world: of targets, rows and positions, where one rank of each data coordinate
// counts; of two numbers that must cancel; and of what data_ends() says. All ranks must run equally
// many micro-batches: the first contributes (n - 1) times a hash of how many, the others minus
// theirs. Ranks that share a data coordinate must run the same ones: likewise, of their contents.
// The sums are modulo 2^64.
void StepAgreement::tell(std::optional<int64_t> ended) {
  int64_t targets = 0, samples = 0, tokens = 0;
  for (const MicroBatch& batch : step_.micro_batches) {
    targets += batch.target_count;
    samples += batch.sample_count;
    tokens += batch.token_count;
  }
  Communicator& world = *ranks_.world;
  const at::Device device = ranks_.data.device();
  const int64_t counts = ranks_.sharer == 0 ? 1 : 0;
  const auto work = static_cast<int64_t>(block_seed(step_.kind(), 0) >> 16);
  std::vector<int64_t> numbers{counts * targets, counts * samples, counts * tokens,
                               weight(world.rank(), world.size()) * work, 0};
  const std::vector<int64_t> ends = data_ends(ended);
  numbers.insert(numbers.end(), ends.begin(), ends.end());
  const MicroBatch* last = step_.micro_batches.empty() ? nullptr : &step_.micro_batches.back();
  most_rows_ = last != nullptr && last->input_ids.defined() ? last->input_ids.numel() : 0;
  const std::vector<int64_t> rows = rows_of_ranks(counts * most_rows_);
  numbers.insert(numbers.end(), rows.begin(), rows.end());
  counts_ = at::tensor(numbers, at::kLong).to(device, /*non_blocking=*/true);
  if (ranks_.sharers > 1) {
    counts_[4].copy_(fingerprint(step_.micro_batches, device) *
                     weight(ranks_.sharer, ranks_.sharers));
  }
  {
    const InPhase phase(step_.phase());
    const ForTensor of("counts of the batch");
    last_ = told_ = world.all_reduce(counts_);
  }
  if (world.size() == 1) return;
  const bool at_once = ended || device.is_cpu();
  {  // beside the step: the host reads it at the end without waiting for what runs then
    if (!beside_) beside_ = side_stream(device);
    const StreamScope scope(*beside_);
    Work(told_).wait();
    std::vector<at::Tensor> looked_at;
    const auto size = static_cast<int64_t>(rows.size()), first = counts_.numel() - size;
    for (int64_t i = 3; i < (at_once ? first : 5); ++i) looked_at.push_back(counts_[i]);
    looked_at.push_back(counts_.narrow(0, first, size).max());
    differences_.emplace(looked_at);
  }
  if (at_once) check_told();  // before ranks wait for each other in vain
}

void StepAgreement::check_told() {
  told_.wait();
  if (!differences_) return;
  std::vector<double> differences = differences_->read();
  require_connected();
  most_rows_ = static_cast<int64_t>(differences.back());
  differences.pop_back();
  if (differences.size() > 2) check_data_ends(std::span(differences).subspan(2));
  check(differences[0] == 0, ErrorCode::kInvalidArgument, name_,
        ": ranks differ in how many micro-batches they run, or one trains while another evaluates, "
        "or accumulates; this one was given ",
        step_.micro_batches.size(), " to ",
        step_.is_pass          ? "run forward()"
        : step_.with_gradients ? step_.accumulates ? "train on with accumulate" : "train on"
                               : "evaluate",
        ". Give every rank equally many, the last ones without targets where data runs out");
  if (differences[1] == 0) return;
  fail(ErrorCode::kInvalidArgument, name_,
       ": ranks of one pipeline or tensor group were given different micro-batches (this rank's "
       "first has ",
       step_.micro_batches.front().target_count,
       " targets); all ranks with the same place on the data "
       "axis work on the same data");
}

// [Note: data that end]
// A rank without data takes part in the first sum of the others' next step. It adds what it has
// done, and its bit to a mask of ranks, in pieces that a double holds. Only it has to wait for the
// answer: where the others go on, it fails, and so do they.
void StepAgreement::tell_end_of_data(int64_t done) {
  if (ranks_.world->size() == 1) return;
  const StepOrder::Call call =
      step_.with_gradients ? StepOrder::Call::kStep : StepOrder::Call::kEvaluation;
  const StepOrder before = order_;
  begin(call);
  tell(done);
  order_ = before;  // no gradient is lost or made
}

std::vector<int64_t> StepAgreement::data_ends(std::optional<int64_t> ended) const {
  const int rank = ranks_.world->rank(), pieces = (ranks_.world->size() - 1) / kRanksOfPiece + 1;
  std::vector<int64_t> numbers(1 + static_cast<size_t>(pieces), 0);
  if (!ended) return numbers;
  numbers[0] = *ended;
  numbers[1 + static_cast<size_t>(rank / kRanksOfPiece)] = int64_t{1} << (rank % kRanksOfPiece);
  return numbers;
}

// By data rank, so that the sum tells all of them.
std::vector<int64_t> StepAgreement::rows_of_ranks(int64_t rows) const {
  std::vector<int64_t> numbers(static_cast<size_t>(ranks_.data.size()), 0);
  numbers[static_cast<size_t>(ranks_.data.rank())] = rows;
  return numbers;
}

// ends: the sums of data_ends().
void StepAgreement::check_data_ends(std::span<const double> ends) {
  std::vector<int> ended, others;
  for (int rank = 0; rank < ranks_.world->size(); ++rank) {
    const auto piece = static_cast<int64_t>(ends[1 + static_cast<size_t>(rank / kRanksOfPiece)]);
    ((piece >> (rank % kRanksOfPiece) & 1) != 0 ? ended : others).push_back(rank);
  }
  if (ended.empty() || others.empty()) return;
  const auto done = static_cast<int64_t>(ends[0]) / static_cast<int64_t>(ended.size());
  const char* unit = step_.with_gradients ? "step" : "batch";
  const std::string of = step_.with_gradients ? "" : " of an evaluation";
  const std::string reason = concat(
      "the data of rank ", rank_list(ended), " ended ",
      done == 0 ? concat("before the first ", unit) : concat("after ", unit, " ", done), of,
      ", while rank ", rank_list(others),
      " went on; give every rank equally many batches, the last ones without targets where data "
      "runs out");
  // Others are in the midst of a step there, and do not look.
  if (!ranks_.data.device().is_cpu()) give_up(reason);
  fail(ErrorCode::kDataLoss, reason);
}

// [Note: a call left by an exception]
// It leaves collectives on their way and buffers half filled. Where all ranks have left it after
// the same collectives, each waits for them and drops what was done: the next call begins as if
// this one had not been made. What was sent over each axis since the call began tells where a rank
// has left it. Ranks compare that at the next call over the whole mesh, on whose communicator
// nothing else is under way within a step. A rank that failed alone waits there for peers that wait
// for it on an axis, until the timeout ends both.
//
// An update that was left may have changed some parameters, and a stage that has left a pipeline
// may owe messages: there is no way back from either.
bool StepAgreement::enter() {
  if (order_.under_way() == StepOrder::Call::kUpdate) {
    order_.make_unusable(
        "an exception has left optimizer_step(), so some parameters may be updated and others not");
  }
  order_.require_usable();
  if (order_.under_way() == StepOrder::Call::kNone) return false;
  rejoin();
  return true;
}

void StepAgreement::begin(StepOrder::Call call, bool adds) {
  order_.begin(call, adds);
  sent_at_begin_ = ranks_.bytes_sent_by_axis();
}

void StepAgreement::give_up(const std::string& why) {
  order_.make_unusable(why);
  ranks_.world->abort(concat("rank ", ranks_.world->rank(), ": ", why));
}

void StepAgreement::rejoin() {
  const at::NoGradGuard no_grad;
  uint64_t place = static_cast<uint64_t>(order_.under_way());
  const std::array<int64_t, 4> sent = ranks_.bytes_sent_by_axis();
  for (size_t i = 0; i < sent.size(); ++i) {
    place = block_seed(place, static_cast<size_t>(sent[i] - sent_at_begin_[i]));
  }
  Communicator& everyone = *ranks_.everyone;
  // As in tell(): it must cancel.
  std::vector<int64_t> numbers(5 + data_ends({}).size() + rows_of_ranks(0).size(), 0);
  numbers[3] = weight(everyone.rank(), everyone.size()) * static_cast<int64_t>(place >> 16);
  at::Tensor sum = at::tensor(numbers, at::kLong).to(everyone.device());
  try {
    everyone.all_reduce(sum).wait();
    check(sum[3].item<int64_t>() == 0, ErrorCode::kUnavailable, "ranks differ in what they sent");
  } catch (const Error& error) {
    order_.make_unusable(
        concat("an exception has left a step, and not on all ranks at the same place (",
               error.what(), ")"));
  }
  order_.require_usable();
}

void StepAgreement::drop() {
  told_.wait();
  differences_.reset();
  order_.drop();
}

}  // namespace tessera
