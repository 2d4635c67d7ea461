#include "tessera/backends/pipeline/gpipe.h"

#include <ATen/ATen.h>

#include "backends/pipeline/stage_links.h"
#include "backends/pipeline/stage_plan.h"
#include "backends/pipeline/wait_timer.h"
#include "tessera/core/error.h"
#include "tessera/core/trace.h"

namespace tessera {
namespace {

constexpr int kReceivesAhead = 2;  // turns: one message a direction in steady state

}  // namespace

GPipe::GPipe(const ParallelConfig& config, std::unique_ptr<ShardingStrategy> inner,
             Communicator& pipeline)
    : config_(config),
      pipeline_(pipeline),
      inner_(std::move(inner)),
      timer_(std::make_unique<WaitTimer>(pipeline.device())),
      links_(std::make_unique<StageLinks>(pipeline, *timer_, config.overlap ? kReceivesAhead : 0)) {
  make_schedule(config.pipeline.schedule, pipeline.size(), 1, config.pipeline.chunks);
}

GPipe::~GPipe() = default;

const StagePlan& GPipe::plan(size_t micro_batches, bool with_gradients) {
  auto& plan = plans_[{micro_batches, with_gradients}];
  if (plan == nullptr) {
    const PipelineSchedule schedule =
        make_schedule(config_.pipeline.schedule, pipeline_.size(), static_cast<int>(micro_batches),
                      config_.pipeline.chunks);
    plan = std::make_unique<StagePlan>(
        plan_stage(with_gradients ? schedule : forwards_of(schedule), pipeline_.rank()));
  }
  return *plan;
}

StepResult GPipe::run(std::span<const MicroBatch> micro_batches, bool with_gradients) {
  inner_->begin(micro_batches, with_gradients);
  const StagePlan& plan = this->plan(micro_batches.size(), with_gradients);
  std::vector<std::vector<int64_t>> shapes;
  for (const auto& micro_batch : micro_batches) {
    shapes.push_back(micro_batch.input_ids.sizes().vec());
    shapes.back().push_back(with_gradients);
  }
  links_->begin(plan, std::move(shapes));
  std::map<std::pair<int, int>, MicroBatchRun> in_flight;  // by chunk and micro-batch
  for (size_t t = 0; t < plan.turns.size(); ++t) {
    const int turn = static_cast<int>(t);
    const auto& [action, input, output, output_needed] = plan.turns[t];
    const std::pair key{action.chunk, action.micro_batch};
    links_->post(turn);
    if (action.kind == PipelineAction::Kind::kForward) {
      const auto [first, count] = chunks_[static_cast<size_t>(action.chunk)];
      MicroBatchRun run = inner_->make_run(static_cast<size_t>(action.micro_batch), first, count);
      if (input) run.hidden = links_->receive(turn);
      inner_->forward(run);
      if (output) links_->send(turn, std::exchange(run.hidden, {}));
      if (with_gradients) in_flight.emplace(key, std::move(run));
    } else {
      check(in_flight.contains(key), ErrorCode::kInternal, to_string(action),
            " comes before its forward");
      MicroBatchRun run = std::move(in_flight.extract(key).mapped());
      if (input) run.gradient = links_->receive(turn);
      inner_->backward(run);
      if (output) links_->send(turn, run.gradient);
    }
  }
  StepResult result = inner_->finish();
  links_->finish();
  share_result(result);
  return result;
}

// The last stage has the loss; the target count is known everywhere.
void GPipe::share_result(StepResult& result) {
  const at::NoGradGuard no_grad;
  const int last = pipeline_.size() - 1;
  const auto options = result.target_count.options();
  const bool has_loss = pipeline_.rank() == last;
  if (counters_ < 0) {
    at::Tensor count =
        at::full({1}, has_loss ? result.counters.numel() : 0, options.dtype(at::kLong));
    pipeline_.broadcast(count, last).wait();
    counters_ = count.item<int64_t>();
  }
  at::Tensor values = has_loss ? at::cat({result.loss.reshape({1}), result.counters})
                               : at::empty({1 + counters_}, options);
  timer_->time([&] { pipeline_.broadcast(values, last).wait(); });
  result.loss = values[0];
  result.counters = values.narrow(0, 1, counters_);
}

StepResult GPipe::forward_backward(std::span<const MicroBatch> micro_batches) {
  const TraceRange range("pipeline forward_backward");
  timer_->begin_step();
  StepResult result = run(micro_batches, /*with_gradients=*/true);
  if (timer_->enabled()) {
    at::Tensor token = at::zeros({1}, result.target_count.options());
    timer_->time([&] { pipeline_.all_reduce(token).wait(); });
    timer_->end_step();
  }
  return result;
}

StepResult GPipe::evaluate(std::span<const MicroBatch> micro_batches) {
  const TraceRange range("pipeline evaluate");
  return run(micro_batches, /*with_gradients=*/false);
}

at::Tensor GPipe::grad_norm_squared() {
  at::Tensor sum = inner_->grad_norm_squared().reshape({1});
  pipeline_.all_reduce(sum).wait();
  return sum.squeeze(0);
}

int64_t GPipe::extra_bytes_sent() const {
  int64_t sum = inner_->extra_bytes_sent();
  for (const auto& holders : holders_) {
    if (holders != nullptr) sum += holders->bytes_sent();
  }
  return sum;
}

void GPipe::measure_times(bool on) { timer_->enable(on); }

PipelineTimes GPipe::times() const { return timer_->read(); }

}  // namespace tessera
