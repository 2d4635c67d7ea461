// SPDX-License-Identifier: MIT
#include "tessera/backends/pipeline/pipeline.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <exception>

#include "backends/pipeline/stage_links.h"
#include "backends/pipeline/stage_schedule.h"
#include "backends/pipeline/wait_timer.h"
#include "lib/core/meta.h"
#include "lib/core/trace.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera {
namespace {

using Kind = PipelineAction::Kind;

constexpr int kReceivesAhead = 2;  // in slots: one message per direction in steady state

// Removes and returns an element; the type's default if there is none.
template <typename Map>
typename Map::mapped_type take(Map& map, const typename Map::key_type& key) {
  auto node = map.extract(key);
  return node.empty() ? typename Map::mapped_type() : std::move(node.mapped());
}

// Reason why a pipeline cannot continue after this exception left its step.
std::string reason_of(const std::exception& error) {
  if (const auto* known = dynamic_cast<const Error*>(&error)) {
    if (known->code() == ErrorCode::kUnavailable) return known->what();
  }
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return concat("an exception has left a step of the pipeline: ",
                of_torch == nullptr ? error.what() : of_torch->what_without_backtrace());
}

}  // namespace

// State of a step in progress.
struct Pipeline::Step {
  bool with_gradients = true;
  // By chunk and micro-batch: until backward; with a split backward, until weight gradients.
  std::map<std::pair<int, int>, MicroBatchRun> in_flight, deferred;
  int blocks = 0, splitting = 0;  // blocks with a backward for their input; those that split it
  // With a shared vocabulary, by micro-batch: the embedding's runs, and tensors between this
  // stage's own blocks and a pass of all stages.
  std::map<int, MicroBatchRun> embedded;
  std::map<int, at::Tensor> hidden, gradients;
  // For a prediction, by micro-batch: selected scores.
  bool with_scores = false;
  ScoreSelection select;
  std::vector<at::Tensor> kept;

  void keep(int m, const at::Tensor& scores) {
    const auto i = static_cast<size_t>(m);
    kept[i] = select ? select(scores, i) : scores;
  }
};

Pipeline::Pipeline(const ParallelConfig& config, std::unique_ptr<ShardingStrategy> inner,
                   Communicator& pipeline, ModelTransform transform)
    : config_(config),
      pipeline_(pipeline),
      transform_(std::move(transform)),
      inner_(std::move(inner)),
      timer_(std::make_unique<WaitTimer>(pipeline.device())),
      links_(std::make_unique<StageLinks>(pipeline, *timer_, config.overlap ? kReceivesAhead : 0)) {
  make_schedule(config.pipeline.schedule, pipeline.size(), 1, config.pipeline.chunks,
                config.pipeline.shared_vocabulary);
}

Pipeline::~Pipeline() = default;

const StageSchedule& Pipeline::schedule_of_stage(size_t micro_batches, bool with_gradients) {
  auto& found = stage_schedules_[{micro_batches, with_gradients}];
  if (found == nullptr) {
    const PipelineSchedule schedule =
        make_schedule(config_.pipeline.schedule, pipeline_.size(), static_cast<int>(micro_batches),
                      config_.pipeline.chunks, config_.pipeline.shared_vocabulary);
    found = std::make_unique<StageSchedule>(
        stage_schedule(with_gradients ? schedule : forwards_of(schedule), pipeline_.rank()));
  }
  return *found;
}

// An exception that leaves a step is final: messages owed to other stages, or requested from them,
// cannot be revoked.
template <typename Fn>
auto Pipeline::or_give_up(const Fn& fn) {
  try {
    return fn();
  } catch (const std::exception& error) {
    inner_->give_up(reason_of(error));
    throw;
  } catch (...) {
    inner_->give_up("an exception has left a step of the pipeline");
    throw;
  }
}

StepResult Pipeline::run(std::span<const MicroBatch> micro_batches, bool with_gradients,
                         const BackwardOptions& options) {
  inner_->begin(micro_batches, with_gradients, options);
  return or_give_up([&] {
    Step step{.with_gradients = with_gradients};
    play(micro_batches, step);
    StepResult result = inner_->finish();
    links_->finish();
    warn_unsplit_backward(step);
    share_result(result);
    return result;
  });
}

// Warns once, on rank 0: if no block splits its backward, a schedule that splits it gains nothing.
void Pipeline::warn_unsplit_backward(const Step& step) {
  const bool splits = step.with_gradients && splits_backward(config_.pipeline.schedule);
  if (!splits || step.blocks == 0 || std::exchange(told_whole_, true)) return;
  if (step.splitting > 0 || log_rank() > 0) return;
  log(LogLevel::kWarning, "pipeline schedule ", config_.pipeline.schedule, ": no block of stage ",
      pipeline_.rank(),
      " splits its backward, so the stage runs as under 1f1b. Layers of language ",
      "models split it where they have fused kernels: in bf16 and fp16 on a GPU");
}

// Scores are on the last stage, or with a shared vocabulary on all.
std::vector<at::Tensor> Pipeline::predict(std::span<const MicroBatch> micro_batches,
                                          const ScoreSelection& select) {
  const TraceRange range("pipeline predict");
  const at::NoGradGuard no_grad;
  inner_->begin_predictions(micro_batches);
  return or_give_up([&] {
    Step step{.with_gradients = false, .with_scores = true, .select = select};
    step.kept.resize(micro_batches.size());
    play(micro_batches, step);
    inner_->finish_predictions();
    links_->finish();
    for (size_t m = 0; m < micro_batches.size() && everyone_ == nullptr; ++m) {
      step.kept[m] = links_->share_scores(micro_batches[m], step.kept[m]);
    }
    return std::move(step.kept);
  });
}

// Runs all slots of this stage.
void Pipeline::play(std::span<const MicroBatch> micro_batches, Step& step) {
  const StageSchedule& schedule = schedule_of_stage(micro_batches.size(), step.with_gradients);
  std::vector<std::vector<int64_t>> shapes;
  for (const auto& micro_batch : micro_batches) {
    shapes.push_back(micro_batch.input_ids.sizes().vec());
    for (const auto& [name, tensor] : micro_batch.extra) {
      shapes.back().push_back(-1);
      shapes.back().insert(shapes.back().end(), tensor.sizes().begin(), tensor.sizes().end());
    }
    shapes.back().insert(shapes.back().end(), {step.with_gradients, micro_batch.packed.sequence});
  }
  links_->begin(schedule, std::move(shapes));
  if (output_of_) expect_shapes(micro_batches, step);
  for (size_t slot = 0; slot < schedule.slots.size(); ++slot) {
    links_->post(static_cast<int>(slot));
    const PipelineAction& action = schedule.slots[slot].action;
    if (action.of_all_stages()) {
      run_shared(action, step);
    } else {
      run_own(static_cast<int>(slot), schedule, step);
    }
  }
}

// On meta: shapes that other stages would send, between parts and to the head.
void Pipeline::expect_shapes(std::span<const MicroBatch> micro_batches, const Step& step) {
  const size_t last = block_index_.size() - 1;
  const auto on_this_rank = [&](size_t m) {
    const MetaMemoryCounter apart;  // keeps the copy out of other counters
    return inner_->make_run(m, 0, 0).micro_batch;
  };
  for (size_t m = 0; m < micro_batches.size(); ++m) {
    const MicroBatch own = on_this_rank(m);
    const auto tell = [&](int boundary, size_t block) {
      links_->expect(m, boundary, output_of_(block, own));
    };
    for (size_t part = 0; part < parts_.size(); ++part) {
      if (parts_[part].first > 0) tell(static_cast<int>(part), parts_[part].first - 1);
    }
    if (everyone_ != nullptr) tell(static_cast<int>(parts_.size()), last - 1);
  }
  if (step.with_scores) return;
  counters_ = output_of_(last, on_this_rank(0)).numel() - (gives_divisor_ ? 2 : 1);
}

// Forward, backward or weight gradients of this stage's blocks.
void Pipeline::run_own(int slot, const StageSchedule& schedule, Step& step) {
  const auto& [action, input, output, output_needed] = schedule.slots[static_cast<size_t>(slot)];
  const int m = action.micro_batch;
  const std::pair key{action.chunk, m};
  if (action.kind == Kind::kForward) {
    const auto [first, count] = chunks_[static_cast<size_t>(action.chunk)];
    MicroBatchRun run = inner_->make_run(static_cast<size_t>(m), first, count);
    run.splits_backward = step.with_gradients && schedule.splits_backward;
    run.weights_at_once = schedule.stage == 0;  // no stage waits for a gradient of its input
    run.hidden = input ? links_->receive(slot) : take(step.hidden, m);
    inner_->forward(run);
    for (const MicroBatchRun::BlockRun& block : run.blocks) {
      const bool splittable = block.input.defined() && block.input.requires_grad();
      step.blocks += splittable || block.offloaded != nullptr ? 1 : 0;
      step.splitting += block.deferred != nullptr ? 1 : 0;
    }
    at::Tensor hidden = std::exchange(run.hidden, {});
    if (output) {
      links_->send(slot, hidden);
    } else if (step.with_scores && everyone_ == nullptr) {
      step.keep(m, hidden);
    } else {
      step.hidden[m] = hidden;  // for the head; undefined after the loss
    }
    if (step.with_gradients) step.in_flight.emplace(key, std::move(run));
    return;
  }
  if (action.kind == Kind::kWeights) {
    check(step.deferred.contains(key), ErrorCode::kInternal, to_string(action),
          " come before its backward");
    MicroBatchRun run = take(step.deferred, key);
    return inner_->backward_weights(run);
  }
  check(step.in_flight.contains(key), ErrorCode::kInternal, to_string(action),
        " comes before its forward");
  MicroBatchRun run = take(step.in_flight, key);
  if (input) {
    run.gradient = links_->receive(slot);
  } else if (everyone_ != nullptr) {
    run.gradient = take(step.gradients, m);
  }
  inner_->backward(run);
  if (output) {
    links_->send(slot, run.gradient);
  } else {
    step.gradients[m] = run.gradient;  // for the embedding
  }
  run.gradient.reset();
  if (schedule.splits_backward) step.deferred.emplace(key, std::move(run));
}

// A pass of all stages over the first or the last block.
void Pipeline::run_shared(const PipelineAction& action, Step& step) {
  const int m = action.micro_batch, me = pipeline_.rank(), last = pipeline_.size() - 1;
  if (timer_->enabled()) {
    at::Tensor token = at::zeros({1}, at::TensorOptions(at::kFloat).device(pipeline_.device()));
    timer_->time([&] { everyone_->all_reduce(token).wait(); });
  }
  if (action.kind == Kind::kEmbed) {
    MicroBatchRun run = inner_->make_run(static_cast<size_t>(m), 0, 1);
    inner_->forward(run);
    const at::Tensor hidden = std::exchange(run.hidden, {});
    if (me == 0) step.hidden[m] = hidden;
    if (step.with_gradients) step.embedded.emplace(m, std::move(run));
  } else if (action.kind == Kind::kHead) {
    MicroBatchRun run = inner_->make_run(static_cast<size_t>(m), inner_->block_count() - 1, 1);
    const int boundary = static_cast<int>(parts_.size());
    run.hidden = links_->share(m, boundary, last, take(step.hidden, m));
    inner_->forward(run);
    if (step.with_scores) step.keep(m, run.hidden);
    if (me == last) step.gradients[m] = run.gradient;
  } else {
    MicroBatchRun run = take(step.embedded, m);
    run.gradient = links_->share(m, 0, 0, take(step.gradients, m));
    inner_->backward(run);
  }
}

// Broadcasts the loss from the last stage; the target count is known everywhere.
void Pipeline::share_result(StepResult& result) {
  const at::NoGradGuard no_grad;
  const int last = pipeline_.size() - 1;
  const auto options = result.target_count.options();
  const bool has_loss = pipeline_.rank() == last;
  if (!std::exchange(told_counters_, true)) {
    const int64_t told = has_loss ? 2 * result.counters.numel() + inner_->gives_divisor() : 0;
    at::Tensor known = at::full({1}, told, options.dtype(at::kLong));
    pipeline_.broadcast(known, last).wait();
    if (!known.is_meta()) {  // on meta expect_shapes() knows it
      counters_ = known.item<int64_t>() / 2;
      gives_divisor_ = known.item<int64_t>() % 2 != 0;
    }
  }
  const int64_t before = gives_divisor_ ? 2 : 1;  // number of elements before the counters
  at::Tensor values = at::empty({before + counters_}, options);
  if (has_loss) {
    std::vector<at::Tensor> parts{result.loss.reshape({1}), result.counters};
    if (gives_divisor_) parts.insert(parts.begin() + 1, result.target_count.reshape({1}));
    values = at::cat(parts);
  }
  timer_->time([&] { pipeline_.broadcast(values, last).wait(); });
  result.loss = values[0];
  result.counters = values.narrow(0, before, counters_);
  if (!gives_divisor_) return;
  result.target_count = values[1];
  if (!has_loss) inner_->divide_by(values[1]);
}

StepResult Pipeline::forward_backward(std::span<const MicroBatch> micro_batches,
                                      const BackwardOptions& options) {
  const TraceRange range("pipeline forward_backward");
  timer_->begin_step();
  StepResult result = run(micro_batches, /*with_gradients=*/true, options);
  if (timer_->enabled()) {
    at::Tensor token = at::zeros({1}, result.target_count.options());
    timer_->time([&] { pipeline_.all_reduce(token).wait(); });
    timer_->end_step();
  }
  return result;
}

StepResult Pipeline::evaluate(std::span<const MicroBatch> micro_batches) {
  const TraceRange range("pipeline evaluate");
  return run(micro_batches, /*with_gradients=*/false);
}

int64_t Pipeline::extra_bytes_sent() const {
  int64_t sum = inner_->extra_bytes_sent();
  for (const auto& replicas : tie_replicas_) {
    if (replicas != nullptr) sum += replicas->bytes_sent();
  }
  if (everyone_ != nullptr) sum += everyone_->bytes_sent();
  return sum;
}

void Pipeline::measure_times(bool on) { timer_->enable(on); }

PipelineTimes Pipeline::times() const { return timer_->read(); }

}  // namespace tessera
