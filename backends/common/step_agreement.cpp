// SPDX-License-Identifier: MIT
#include "backends/common/step_agreement.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "backends/common/agreement.h"
#include "backends/common/cut_rows.h"
#include "lib/comm/operation_scope.h"
#include "tessera/comm/control_channel.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr int kRanksOfPiece = 48;
constexpr size_t kFirstEnd = 5;         // index among the sums
constexpr int64_t kGiven = 4;           // numbers of a rank's update
constexpr int64_t kSameBits = 1 << 10;  // tolerance in fp32 bits: 1e-4 of the number
constexpr size_t kSkip = 2;
const char* const kNames[kGiven] = {"learning rate", "scale of the gradients", "skip",
                                    "loss scale"};

int64_t bits_of(double number) { return std::bit_cast<int32_t>(static_cast<float>(number)); }

float number_of(double bits) { return std::bit_cast<float>(static_cast<int32_t>(bits)); }

bool is_skipped(double bits) { return number_of(bits) != 0; }

// i: index in kNames. a, b: bits, or kNoUpdate in the first.
bool same_number(size_t i, double a, double b) {
  if (a == b) return true;
  if (i == kSkip) return is_skipped(a) == is_skipped(b);
  const bool far = std::abs(a) > INT32_MAX || std::abs(b) > INT32_MAX;  // one rank has no update
  if (!far && std::isnan(number_of(a)) && std::isnan(number_of(b))) return true;
  return std::abs(a - b) <= kSameBits;
}

// Weights by rank whose sum over ranks is 0 for equal numbers.
int64_t weight(int rank, int ranks) { return rank == 0 ? ranks - 1 : -1; }

}  // namespace

// [Note: what ranks tell each other before a step]
// One all-reduce over the world sums: targets, rows and positions, counted by one rank per data
// coordinate; two numbers that must cancel; data_ends(); and the last update. All ranks must run
// equally many micro-batches: the first contributes (n - 1) times a hash of their number, the
// others minus theirs. Ranks that share a data coordinate must run the same ones, checked likewise
// by a hash of their contents. Sums are modulo 2^64.
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
  most_rows_ =
      last != nullptr && last->input_ids.defined() ? cut_token_count(*last, ranks_.context()) : 0;
  const std::vector<int64_t> rows = rows_of_ranks(counts * most_rows_);
  first_row_ = numbers.size();
  numbers.insert(numbers.end(), rows.begin(), rows.end());
  add_update(numbers);
  counts_ = at::tensor(numbers, at::kLong).to(device, /*non_blocking=*/true);
  if (given_.defined()) {
    const auto place = static_cast<int64_t>(first_given_) + kGiven * world.rank() + 1;
    counts_.narrow(0, place, kGiven - 1).copy_(given_);
    given_.reset();
  }
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
  if (device.is_meta()) {  // no values on meta
    Work(told_).wait();
    return agree_on_expert_tokens();
  }
  const bool at_once = ended || device.is_cpu();
  {  // on a side stream: the host reads it at the end without waiting for later work
    if (!beside_) beside_ = side_stream(device);
    const StreamScope scope(*beside_);
    Work(told_).wait();
    sums_.emplace(counts_);
  }
  looks_at_ends_ = at_once || ranks_.expert() != nullptr;
  if (at_once) check_agreement();  // before ranks wait for each other in vain
  if (!ended) agree_on_expert_tokens();
}

// [Note: tokens of an expert axis]
// Ranks gather each other's tokens in parts of one size, but their micro-batches may differ in
// length. Before a pass they gather the lengths, once for all its micro-batches, and each waits for
// the others' on the host: layers then wait for nothing.
void StepAgreement::agree_on_expert_tokens() {
  expert_tokens_.clear();
  Communicator* const axis = ranks_.expert();
  if (axis == nullptr) return;
  for (const MicroBatch& batch : step_.micro_batches) {
    expert_tokens_.push_back(batch.input_ids.defined() ? batch.input_ids.numel() : 0);
  }
  const bool has_values = !axis->device().is_meta();
  if (has_values) check_agreement();  // on equally many micro-batches
  const at::Tensor own = at::tensor(expert_tokens_, at::kLong).to(axis->device());
  const at::Tensor all = at::empty({axis->size(), own.size(0)}, own.options());
  const InPhase phase(step_.phase());
  const ForTensor of("counts of the batch");
  axis->all_gather(all, own).wait();
  if (!has_values) return;
  const at::Tensor most = all.amax(0).cpu();
  expert_tokens_.assign(most.const_data_ptr<int64_t>(),
                        most.const_data_ptr<int64_t>() + most.numel());
}

void StepAgreement::check_agreement() {
  told_.wait();
  if (!sums_) return;
  const std::vector<double> sums = sums_->read();
  require_connected();
  const std::span all(sums);
  const auto rows = all.subspan(first_row_, static_cast<size_t>(ranks_.data.size()));
  const auto given = all.subspan(first_given_, numbers_of_updates());
  most_rows_ = static_cast<int64_t>(std::ranges::max(rows));
  if (looks_at_ends_) check_data_ends(all.subspan(kFirstEnd, first_row_ - kFirstEnd));
  check(sums[3] == 0, ErrorCode::kInvalidArgument, name_,
        ": ranks differ in how many micro-batches they run, or one trains while another evaluates, "
        "or accumulates; this one was given ",
        step_.micro_batches.size(), " to ",
        step_.is_pass          ? "run forward()"
        : step_.with_gradients ? step_.accumulates ? "train on with accumulate" : "train on"
                               : "evaluate",
        ". Give every rank equally many, the last ones without targets where data runs out");
  if (sums[4] == 0) return update_differs(given) ? require_same_update(given) : void();
  fail(ErrorCode::kInvalidArgument, name_,
       ": ranks of one pipeline or tensor group were given different micro-batches (this rank's "
       "first has ",
       step_.micro_batches.front().target_count,
       " targets); all ranks with the same place on the data "
       "axis work on the same data");
}

// [Note: what ranks give to an update]
// Learning rates, factors, skips and loss scales must be equal on all ranks. Each rank adds its
// own, at its own index, to the first sum after the update, so that nothing waits for them. They
// are compared as fp32 bits with a tolerance, as hosts with other libraries may round differently.
// Without an update the rate is kNoUpdate.
void StepAgreement::hand_over(double learning_rate, const at::Tensor& factor,
                              const at::Tensor& skip, const at::Tensor& loss_scale) {
  if (ranks_.world->size() == 1) return;
  const at::NoGradGuard no_grad;
  rate_ = bits_of(learning_rate);
  const auto options = at::TensorOptions(at::kFloat).device(ranks_.data.device());
  if (!zero_.defined()) {
    zero_ = at::zeros({}, options);
    one_ = at::ones({}, options);
  }
  const auto or_else = [&](const at::Tensor& value, const at::Tensor& otherwise) {
    return value.defined() ? value.detach().to(options).reshape({}) : otherwise;
  };
  // Few kernels: the host interprets them.
  given_ = at::stack({or_else(factor, one_), or_else(skip, zero_), or_else(loss_scale, one_)})
               .view(at::kInt);
}

size_t StepAgreement::numbers_of_updates() const {
  const int ranks = ranks_.world->size();
  return ranks == 1 ? 0 : static_cast<size_t>(kGiven * ranks);
}

void StepAgreement::add_update(std::vector<int64_t>& numbers) {
  first_given_ = numbers.size();
  if (numbers_of_updates() == 0) return;
  numbers.resize(first_given_ + numbers_of_updates(), 0);
  numbers[first_given_ + static_cast<size_t>(kGiven * ranks_.world->rank())] =
      std::exchange(rate_, kNoUpdate);
}

// given: kGiven sums per rank.
bool StepAgreement::update_differs(std::span<const double> given) const {
  for (size_t place = 0; place < given.size(); ++place) {
    const size_t i = place % kGiven;
    if (!same_number(i, given[place], given[i])) return true;
  }
  return false;
}

// After a difference the ranks' weights belong to different models.
void StepAgreement::require_same_update(std::span<const double> sums) {
  const int ranks = ranks_.world->size();
  std::string list;
  bool all_updated = true;
  for (size_t i = 0; i < kGiven && all_updated; ++i) {
    std::vector<std::pair<double, std::vector<int>>> given;
    for (int rank = 0; rank < ranks; ++rank) {
      const double bits = sums[static_cast<size_t>(kGiven * rank) + i];
      const auto same = [&](const auto& known) { return same_number(i, known.first, bits); };
      auto found = std::ranges::find_if(given, same);
      if (found == given.end()) found = given.insert(found, {bits, {}});
      found->second.push_back(rank);
    }
    if (given.size() == 1) continue;
    std::string of_ranks;
    for (const auto& [bits, of] : given) {
      const bool none = bits == static_cast<double>(kNoUpdate);
      all_updated = all_updated && !none;
      const float value = i == kSkip ? (is_skipped(bits) ? 1.F : 0.F) : number_of(bits);
      of_ranks += concat(of_ranks.empty() ? "" : ", ", none ? "no update" : concat(value),
                         " on rank ", rank_list(of));
    }
    list += concat(list.empty() ? "" : "; ", kNames[i], " ", of_ranks);
  }
  const std::string reason = concat(
      "ranks differed in their last optimizer_step(): ", list,
      ". Every rank must make the same update: take rates, clipping and skips from numbers "
      "that all ranks have. The ranks' weights differ now; begin again or load a checkpoint");
  order_.make_unusable(reason);
  fail(ErrorCode::kInvalidArgument, name_, ": ", reason);
}

// [Note: data that end]
// A rank without data takes part in the first sum of the others' next step. It adds its number of
// steps, and its bit to a mask of ranks, in pieces that a double holds. Only this rank waits for
// the result: if others continue, it fails, and so do they.
void StepAgreement::tell_end_of_data(int64_t done) {
  if (ranks_.world->size() == 1) return;
  const StepOrder::Call call =
      step_.with_gradients ? StepOrder::Call::kStep : StepOrder::Call::kEvaluation;
  const StepOrder before = order_;
  begin(call);
  tell(done);
  order_ = before;  // the gradient is unchanged
}

std::vector<int64_t> StepAgreement::data_ends(std::optional<int64_t> ended) const {
  const int rank = ranks_.world->rank(), pieces = (ranks_.world->size() - 1) / kRanksOfPiece + 1;
  std::vector<int64_t> numbers(1 + static_cast<size_t>(pieces), 0);
  if (!ended) return numbers;
  numbers[0] = *ended;
  numbers[1 + static_cast<size_t>(rank / kRanksOfPiece)] = int64_t{1} << (rank % kRanksOfPiece);
  return numbers;
}

// Rows at the data rank's index, so that the sum has every rank's.
std::vector<int64_t> StepAgreement::rows_of_ranks(int64_t rows) const {
  std::vector<int64_t> numbers(static_cast<size_t>(ranks_.data.size()), 0);
  numbers[static_cast<size_t>(ranks_.data.rank())] = rows;
  return numbers;
}

// ends: sums of data_ends().
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
  // Other ranks on a GPU are in the middle of a step and do not look.
  if (!ranks_.data.device().is_cpu()) give_up(reason);
  fail(ErrorCode::kDataLoss, reason);
}

// [Note: a call left by an exception]
// An exception leaves collectives pending and buffers half filled. If all ranks left the call after
// the same collectives, each waits for them and drops the results: the next call begins as if this
// one had not been made. The bytes sent over each axis since the call began identify the point.
// Ranks compare them at the next call over the mesh, whose communicator is idle within a step. A
// rank that failed alone waits there for peers that wait for it on an axis, until the timeout ends
// both.
//
// An interrupted update may have changed some parameters, and an interrupted stage may owe
// messages: neither can be undone.
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
  const std::array<int64_t, 7> sent = ranks_.bytes_sent_by_axis();
  for (size_t i = 0; i < sent.size(); ++i) {
    place = block_seed(place, static_cast<size_t>(sent[i] - sent_at_begin_[i]));
  }
  Communicator& everyone = *ranks_.everyone;
  // Must cancel, as in tell().
  std::vector<int64_t> numbers(
      5 + data_ends({}).size() + rows_of_ranks(0).size() + numbers_of_updates(), 0);
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
  sums_.reset();
  order_.drop();
}

}  // namespace tessera
