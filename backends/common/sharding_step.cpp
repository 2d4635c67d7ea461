// One micro-batch through the blocks of a ShardingStrategy, and what frames it.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "backends/common/agreement.h"
#include "backends/common/block_backward.h"
#include "lib/comm/operation_scope.h"
#include "lib/core/device_room.h"
#include "lib/core/trace.h"
#include "tessera/backends/sharding_strategy.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tessera/core/phase_clock.h"

namespace tessera {

namespace {

const char* phase_name(bool with_gradients, bool with_scores) {
  return with_gradients ? "forward" : with_scores ? "prediction" : "evaluation";
}

}  // namespace

void ShardingStrategy::acquire_block(size_t block) {
  for (size_t unit : units_of_block_[block]) {
    optimizer_->complete(unit);
    parameters_->acquire(unit);
  }
}

// Starts the gathers of the next units beyond this block, on the way to block `end` (exclusive).
void ShardingStrategy::prefetch_after(size_t block, size_t end, int direction) {
  const std::vector<size_t>* seen = &units_of_block_[block];
  int left = config_.prefetch_blocks;
  for (size_t next = block + direction; next != end && left > 0; next += direction) {
    // Several blocks in one unit, and blocks without parameters, need no gather of their own.
    if (units_of_block_[next] == *seen || units_of_block_[next].empty()) continue;
    seen = &units_of_block_[next];
    --left;
    for (size_t unit : *seen) {
      optimizer_->complete(unit);
      parameters_->prefetch(unit);
    }
  }
}

void ShardingStrategy::release_block(size_t block) {
  for (size_t unit : units_of_block_[block]) parameters_->release(unit);
}

void ShardingStrategy::begin(std::span<const MicroBatch> micro_batches, bool with_gradients) {
  enter();
  if (with_gradients) order_.require_gradient_used(name());
  check(
      !micro_batches.empty(), ErrorCode::kInvalidArgument, name(),
      with_gradients ? ": a step without micro-batches" : ": an evaluation without micro-batches");
  with_gradients_ = with_gradients;
  with_scores_ = false;
  micro_batches_.assign(micro_batches.begin(), micro_batches.end());
  // By the micro-batch's place in the global batch: one rank that runs them all draws the same.
  const uint64_t step_seed = block_seed(seed_, static_cast<size_t>(steps_begun_.item<int64_t>()));
  const size_t first = static_cast<size_t>(data_.rank()) * micro_batches_.size();
  for (size_t m = 0; m < micro_batches_.size(); ++m) {
    check_counts(micro_batches_[m]);
    check_packed_rows(micro_batches_[m]);
    micro_batches_[m].seed = block_seed(step_seed, first + m);
  }
  begin_call(with_gradients ? StepOrder::Call::kStep : StepOrder::Call::kEvaluation);
  exchange_counts();
  loss_gradient_.reset();
  sums_.reset();
  if (with_gradients) {
    gradient_scale_.reset();
    gradients_->begin_step();
    make_room();
  } else {
    adopt_statistics();
  }
}

// A step that is larger than all before it asks the driver for memory many times, each of which
// takes as long as several kernels: segments of the first step's sizes serve no larger tensors. So
// when micro-batches turn out to differ in size, LibTorch's allocator gives back what it keeps and
// gets one block instead, from which steps of every size can be cut.
void ShardingStrategy::make_room() {
  const at::Device device = data_.device();
  if (!device.is_cuda() || room_made_) return;
  int64_t tokens = 0, rows = 1;
  for (const MicroBatch& batch : micro_batches_) {
    tokens = std::max(tokens, batch.token_count);
    rows = std::max(rows, batch.sample_count);
  }
  if (tokens_before_ == 0) tokens_before_ = tokens;
  if (tokens == tokens_before_) return;
  room_made_ = true;
  const MemoryUse use = memory_use(device);
  const int64_t of_step = use.peak_allocated_bytes - use.allocated_bytes;
  int64_t room = of_step / 2;
  // Giving back waits for the device, which may wait for messages of stages that wait for this one.
  if (sharers_ == 1) {
    c10::getDeviceAllocator(device.type())->emptyCache();
    room = room_for_steps(of_step, tokens_before_, tokens, rows);
  }
  make_device_room(device, std::min(room, device_memory(device).first / 2));
}

void ShardingStrategy::check_packed_rows(const MicroBatch& micro_batch) const {
  for (size_t i = 0; micro_batch.packed.defined() && i < blocks_.size(); ++i) {
    check(blocks_[i]->takes_packed_rows(), ErrorCode::kInvalidArgument, name(), ": block ",
          block_names_[i],
          " was given packed rows, but does not say that it keeps to them. Let "
          "Block::takes_packed_rows() (ModuleOptions::takes_packed_rows of an adapted module) "
          "return true if it looks at no other position or only at those of the same row "
          "(MicroBatch::packed); else train without packing and padding_free");
  }
}

// [Note: what ranks tell each other before a step]
// One sum over the world: of targets, rows and positions, where one rank of each data coordinate
// counts; of two numbers that must cancel; and of what sharding_data_end.cpp says. All ranks must
// run equally many micro-batches: the first contributes (n - 1) times a hash of how many, the
// others minus theirs. Ranks that share a data coordinate must run the same ones: likewise, of
// their contents. The sums are modulo 2^64.
void ShardingStrategy::exchange_counts(std::optional<int64_t> ended) {
  int64_t targets = 0, samples = 0, tokens = 0;
  for (const MicroBatch& batch : micro_batches_) {
    targets += batch.target_count;
    samples += batch.sample_count;
    tokens += batch.token_count;
  }
  const int64_t counts = sharer_ == 0 ? 1 : 0;
  auto weight = [](int rank, int ranks) { return int64_t{rank == 0 ? ranks - 1 : -1}; };
  const auto kind = static_cast<uint64_t>(micro_batches_.size()) * 2 + (with_gradients_ ? 1 : 0);
  const auto work = static_cast<int64_t>(block_seed(kind, 0) >> 16);
  std::vector<int64_t> numbers{counts * targets, counts * samples, counts * tokens,
                               weight(world_->rank(), world_->size()) * work, 0};
  for (const int64_t number : data_ends(ended)) numbers.push_back(number);
  counts_ = at::tensor(numbers, at::kLong).to(data_.device(), /*non_blocking=*/true);
  if (sharers_ > 1) {
    counts_[4].copy_(fingerprint(micro_batches_, data_.device()) * weight(sharer_, sharers_));
  }
  {
    const InPhase phase(phase_name(with_gradients_, with_scores_));
    const ForTensor of("counts of the batch");
    counts_work_ = world_->all_reduce(counts_);
  }
  if (world_->size() == 1) return;
  const bool at_once = ended || data_.device().is_cpu();
  {  // beside the step: the host reads it at the end without waiting for what runs then
    if (!beside_) beside_ = side_stream(data_.device());
    const StreamScope scope(*beside_);
    Work(counts_work_).wait();
    std::vector<at::Tensor> looked_at;
    for (int64_t i = 3; i < (at_once ? counts_.numel() : 5); ++i) looked_at.push_back(counts_[i]);
    agreement_.emplace(looked_at);
  }
  if (at_once) check_agreement();  // before ranks wait for each other in vain
}

void ShardingStrategy::check_agreement() {
  counts_work_.wait();
  if (!agreement_) return;
  const std::vector<double> differences = agreement_->read();
  if (differences.size() > 2) check_data_ends(std::span(differences).subspan(2));
  check(differences[0] == 0, ErrorCode::kInvalidArgument, name(),
        ": ranks differ in how many micro-batches they run, or one trains while another evaluates; "
        "this one was given ",
        micro_batches_.size(), " to ", with_gradients_ ? "train on" : "evaluate",
        ". Give every rank equally many, the last ones without targets where data runs out");
  check(differences[1] == 0, ErrorCode::kInvalidArgument, name(),
        ": ranks of one pipeline or tensor group were given different micro-batches (this rank's "
        "first has ",
        micro_batches_.front().target_count,
        " targets); all ranks with the same place on the data "
        "axis work on the same data");
}

MicroBatchRun ShardingStrategy::make_run(size_t index, size_t first_block,
                                         size_t block_count) const {
  MicroBatchRun run;
  run.micro_batch = micro_batches_.at(index);
  run.micro_batch.training = with_gradients_;
  run.micro_batch.keep_activations = with_gradients_ && config_.keeps_activations();
  run.first_block = first_block;
  run.block_count = block_count;
  run.with_gradients = with_gradients_;
  run.with_scores = with_scores_;
  run.last_micro_batch = index + 1 == micro_batches_.size();
  return run;
}

// d(objective)/d(loss sum), the same for every micro-batch of the step.
at::Tensor ShardingStrategy::loss_gradient() {
  if (!loss_gradient_.defined()) {
    counts_work_.wait();
    loss_gradient_ = counts_[0].clamp_min(1).to(at::kDouble).reciprocal().to(at::kFloat);
    if (loss_scale_.defined()) loss_gradient_ = loss_gradient_ * loss_scale_;
  }
  return loss_gradient_;
}

void ShardingStrategy::forward(MicroBatchRun& run) {
  const TraceRange range("forward");
  const PhaseScope phase(Phase::kForward);
  const InPhase named(phase_name(run.with_gradients, run.with_scores));
  const at::AutoGradMode gradients(run.with_gradients);
  const size_t end = run.first_block + run.block_count;
  run.blocks.resize(run.block_count);
  at::Tensor hidden = std::exchange(run.hidden, {});
  bool is_trained = hidden.defined();  // something before: an earlier stage cannot be told
  for (size_t i = run.first_block; i < end; ++i) {
    MicroBatchRun::BlockRun& block = run.blocks[i - run.first_block];
    if (run.with_gradients && hidden.defined()) {
      block.input = hidden.detach();
      block.input.set_requires_grad(is_trained && at::isFloatingType(hidden.scalar_type()));
    }
    is_trained = is_trained || !trained_units_of_block_[i].empty();
    block.has_backward = run.with_gradients && is_trained;
    const ForTensor of(block_names_[i]);
    acquire_block(i);
    prefetch_after(i, end, +1);
    const bool last = has_loss_ && i + 1 == blocks_.size();
    if (last && run.with_scores) {
      hidden = forward_scores(run, hidden);
    } else if (last) {
      forward_loss(run, i, hidden);
      hidden.reset();
    } else {
      hidden = forward_block(run, i, hidden);
    }
    release_block(i);
  }
  run.hidden = hidden.defined() ? hidden.detach() : hidden;
}

at::Tensor ShardingStrategy::forward_block(MicroBatchRun& run, size_t index,
                                           const at::Tensor& hidden) {
  const TraceRange range("block forward");
  if (!run.with_gradients) return blocks_[index]->forward(hidden, run.micro_batch);
  MicroBatchRun::BlockRun& block = run.blocks[index - run.first_block];
  if (config_.gradient_checkpointing || !block.has_backward) {
    at::NoGradGuard no_grad;
    return blocks_[index]->forward(block.input, run.micro_batch);
  }
  block.output = blocks_[index]->forward(block.input, run.micro_batch);
  return block.output;
}

// Gradients are ready for a loss that accumulates them during forward, and its backward follows at
// once: its scores and its parameters are needed once, whatever the schedule.
void ShardingStrategy::forward_loss(MicroBatchRun& run, size_t index, const at::Tensor& hidden) {
  const TraceRange range("loss");
  const auto& units = trained_units_of_block_[index];
  const at::Tensor input =
      run.with_gradients ? std::exchange(run.blocks[index - run.first_block].input, {}) : hidden;
  if (run.with_gradients) {
    for (size_t unit : units) gradients_->before_backward(unit);
    run.micro_batch.loss_gradient = loss_gradient();
  }
  const at::Tensor output = blocks_[index]->forward(input, run.micro_batch);
  check(output.defined() && output.dim() <= 1 && output.numel() >= 1, ErrorCode::kInvalidArgument,
        "the last block must return a 1-D tensor whose first element is the loss sum, but it "
        "returned ",
        output.defined() ? concat("shape ", output.sizes()) : std::string("nothing"));
  const at::Tensor sums = output.detach().reshape({-1}).to(at::kDouble);
  sums_ = sums_.defined() ? sums_ + sums : sums.clone();
  if (!run.with_gradients) return;
  if (output.requires_grad()) {
    const PhaseScope phase(Phase::kBackward);
    const InPhase named("backward");
    const at::Tensor loss = output.reshape({-1}).select(0, 0);
    torch::autograd::backward({loss}, {run.micro_batch.loss_gradient.to(loss.scalar_type())});
  }
  run.gradient = input.defined() ? input.grad() : at::Tensor();
  for (size_t unit : units) gradients_->after_backward(unit, run.last_micro_batch);
}

void ShardingStrategy::backward(MicroBatchRun& run) {
  const TraceRange range("backward");
  const PhaseScope phase(Phase::kBackward);
  const InPhase named("backward");
  const at::AutoGradMode gradients(true);
  const size_t loss = has_loss_ ? blocks_.size() - 1 : blocks_.size();
  at::Tensor gradient = std::exchange(run.gradient, {});
  const size_t end = run.first_block + run.block_count;
  size_t first = run.first_block;  // nothing before it is trained
  while (first < end && !run.blocks[first - run.first_block].has_backward) ++first;
  for (size_t i = std::min(end, loss); i-- > first;) {
    const TraceRange block_range("block backward");
    const ForTensor of(block_names_[i]);
    MicroBatchRun::BlockRun& block = run.blocks[i - run.first_block];
    acquire_block(i);
    for (size_t unit : trained_units_of_block_[i]) gradients_->before_backward(unit);
    prefetch_after(i, first - 1, -1);
    if (!block.output.defined()) block.output = blocks_[i]->forward(block.input, run.micro_batch);
    if (block.output.requires_grad()) {
      check(gradient.defined(), ErrorCode::kInvalidArgument, "block ", i + 1,
            " gave no gradient to its input; its output must depend on it");
      gradient = block_backward(block.output, gradient, block.input);
    } else {
      gradient.reset();
    }
    block = {};
    release_block(i);
    for (size_t unit : trained_units_of_block_[i]) {
      gradients_->after_backward(unit, run.last_micro_batch);
    }
  }
  run.gradient = gradient;
}

StepResult ShardingStrategy::finish() {
  at::NoGradGuard no_grad;
  const InPhase phase(with_gradients_ ? "reduce" : "evaluation");
  const ForTensor of("loss");
  if (sums_.defined()) works_.push_back(data_.all_reduce(sums_));
  if (with_gradients_) {
    gradients_->finish();
    finish_sums();
  }
  check_agreement();
  for (Work& work : works_) work.wait();
  works_.clear();
  micro_batches_.clear();
  if (with_gradients_) steps_begun_.add_(1);
  order_.end();
  StepResult result{.target_count = counts_[0].to(at::kFloat),
                    .sample_count = counts_[1],
                    .token_count = counts_[2]};
  if (sums_.defined()) {
    result.loss = (sums_[0] / counts_[0].clamp_min(1)).to(at::kFloat);
    result.counters = sums_.narrow(0, 1, sums_.numel() - 1).to(at::kFloat);
  }
  return result;
}

}  // namespace tessera
