// SPDX-License-Identifier: MIT
#include "benchmarks/strategies/step_benchmark.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>

#include <algorithm>
#include <iostream>
#include <numeric>
#include <sstream>
#include <utility>

#include "backends/common/fp8_choice.h"
#include "backends/pipeline/measure.h"
#include "backends/pipeline/simulator.h"
#include "benchmarks/strategies/row_source.h"
#include "benchmarks/strategies/step_profile.h"
#include "lib/core/clock.h"
#include "lib/run/layout.h"
#include "lib/run/optimizer.h"
#include "tessera/backends/pipeline/pipeline.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tessera/models/block_times.h"
#include "tessera/models/language_model.h"
#include "tessera/train/trainer.h"

namespace tessera::bench {
namespace {

// One line of "key": value pairs.
class JsonLine {
 public:
  JsonLine() {
    line_.setf(std::ios::fixed);
    line_.precision(2);
  }
  template <typename T>
  JsonLine& add(const char* key, const T& value) {
    line_ << (empty_ ? "" : ", ") << '"' << key << "\": ";
    empty_ = false;
    if constexpr (std::is_convertible_v<T, std::string>) {
      line_ << '"' << value << '"';
    } else {
      line_ << value;
    }
    return *this;
  }
  std::string text() const { return concat("{", line_.str(), "}"); }

 private:
  std::ostringstream line_;
  bool empty_ = true;
};

}  // namespace

std::vector<int64_t> StepBenchmark::Footprint::values() const {
  return {peak_allocated,
          peak_reserved,
          held.parameter_bytes,
          held.gradient_bytes,
          held.optimizer_bytes,
          held.buffer_bytes,
          held.host_bytes,
          held.pinned_bytes,
          sent,
          device_allocations,
          allocated};
}

void StepBenchmark::run(benchmark::State& state) {
  const at::Device device = world_.device();
  DeviceMesh mesh(world_, programs::mesh_extents(options_.run, world_.size()));
  ParallelConfig config = programs::parallel_config(options_.of(strategy_name_));
  const StageBalance balance = options_.run.axes.balance;
  const LanguageModel language_model = LanguageModel::from_name(options_.run.model.config);
  const int64_t vocabulary = language_model.config().vocabulary;
  const ModelSpec model = language_model.make_causal();
  RowSource rows(options_, mesh, micro_batch_, vocabulary, device);
  const BuildContext measured_on{
      .device = device,
      .seed = 1,
      .tensor = mesh.extent(Axis::kTensor) > 1 ? &mesh.axis(Axis::kTensor) : nullptr,
      .sequence_parallel = config.sequence_parallel};
  if (balance == StageBalance::kTime) {
    config.pipeline.block_costs = block_times(model, rows.share());
  } else if (balance == StageBalance::kMeasured && mesh.extent(Axis::kPipeline) > 1) {
    config.pipeline.block_costs = measure_block_costs(
        model, measured_on, config.precision.parameter, rows.next().front(), world_);
  }
  if (config.precision.fp8 == Fp8::kAuto) {
    const Fp8Layers layers = measure_fp8_layers(model, measured_on, config.precision.parameter,
                                                rows.next().front(), world_);
    use_fp8_layers(layers, config.precision);
  }
  choices_ = choose_by_plan({.options = options_,
                             .micro_batch = micro_batch_,
                             .model = model,
                             .world = world_,
                             .available = [this] { return least_available(); }},
                            config);
  auto strategy = make_strategy(config, mesh);
  const double build_begin = now_s();
  strategy->attach(model, {.device = device, .seed = 1},
                   programs::optimizer_of(options_.run.training));
  build_s_ = now_s() - build_begin;

  TrainerOptions trainer_options;
  trainer_options.device = device;
  trainer_options.max_grad_norm = options_.run.training.max_grad_norm;
  trainer_options.schedule = {.kind = LrScheduleKind::kConstant, .peak = 1e-4};
  trainer_options.loss_scaler.enabled = config.precision.parameter == at::kHalf;
  Trainer trainer(*strategy, trainer_options);
  using Work = std::vector<std::vector<MicroBatch>>;
  const auto make_work = [&](int64_t steps) {
    Work work;
    for (int64_t i = 0; i < steps; ++i) {
      work.push_back(rows.next());
      tokens_.push_back(rows.tokens());
      positions_.push_back(std::accumulate(
          work.back().begin(), work.back().end(), int64_t{0},
          [](int64_t sum, const MicroBatch& batch) { return sum + batch.token_count; }));
    }
    return work;
  };
  const auto fit = [&](const Work& work, const auto& on_step) {
    size_t next = 0;
    trainer.fit([&] { return next < work.size() ? work[next++] : std::vector<MicroBatch>{}; },
                on_step);
  };
  const auto take = [&](const Work& work) {
    std::vector<double> times;
    fit(work, [&](const StepReport& report) {
      loss_ = report.loss;
      times.push_back(report.step_time_s);
      if (report.phases) optimizer_s_ = report.phases->optimizer_s;
    });
    return times;
  };
  const bool apart = options_.sync;
  const auto step_apart = [&](const Work& work) {
    if (apart) synchronize();
    const double begin = now_s();
    take(work);
    if (apart) synchronize();
    return now_s() - begin;
  };
  const int64_t warmup = options_.warmup, steps = options_.run.training.max_steps;
  if (apart) {
    for (int64_t i = 0; i < warmup; ++i) step_apart(make_work(1));
  } else {
    take(make_work(warmup));
  }
  tokens_.clear(), positions_.clear();
  const int64_t sent = programs::bytes_sent(mesh, *strategy);
  if (device.is_cuda()) reset_peak_memory(device);
  const int64_t allocations = read_device().device_allocations;
  world_.barrier();
  if (!apart) times_ = take(make_work(steps));
  for (size_t i = 0; auto _ : state) {
    if (apart) times_.push_back(step_apart(make_work(1)));
    state.SetIterationTime(times_[i++]);
  }
  Footprint footprint = read_device();
  footprint.held = strategy->memory();
  offload_ = strategy->offload_report();
  footprint.device_allocations -= allocations;
  footprint.sent =
      (programs::bytes_sent(mesh, *strategy) - sent) / static_cast<int64_t>(times_.size());
  state.counters["tokens/s/rank"] = tokens_per_second_and_rank();
  state.counters["peak_MiB"] = static_cast<double>(footprint.peak_allocated) / (1 << 20);
  const Idle idle = measure_idle(*strategy, model, config, [&] { step_apart({rows.next()}); });
  mean_length_ = std::accumulate(tokens_.begin(), tokens_.end(), int64_t{0}) /
                 (static_cast<int64_t>(tokens_.size()) * rows.rows());
  print(model, mesh, strategy->parameter_count(), footprint, idle);
  if (!options_.profile) return;
  const std::string variant = options_.variant();
  // Separate steps after all measurements; their rows are ready in advance.
  profile_steps({.world = world_,
                 .name = concat(model.name, "/", strategy_name_, "/mb", micro_batch_,
                                variant.empty() ? "" : "/", variant),
                 .precision = config.precision.parameter,
                 .prepare = [&](int64_t count) -> std::function<std::vector<TimedStep>()> {
                   return [&, work = make_work(count)] {
                     std::vector<TimedStep> timed;
                     const auto on_step = [&](const StepReport& report) {
                       timed.push_back({report.step_time_s, report.data_time_s,
                                        report.phases.value_or(PhaseTimes())});
                     };
                     if (!apart) fit(work, on_step);
                     for (size_t i = 0; apart && i < work.size(); ++i) {
                       synchronize();
                       const double begin = now_s();
                       fit({work[i]}, on_step);
                       synchronize();
                       timed.back().step_s = now_s() - begin;
                     }
                     synchronize();
                     return timed;
                   };
                 }});
}

StepBenchmark::Idle StepBenchmark::measure_idle(Strategy& strategy, const ModelSpec& model,
                                                const ParallelConfig& config,
                                                const std::function<void()>& step) const {
  constexpr int kSteps = 3;
  Idle idle;
  auto* pipeline = dynamic_cast<Pipeline*>(&strategy);
  if (pipeline == nullptr) return idle;
  idle.measured = true;
  pipeline->measure_times(true);
  double mine = 0;
  for (int i = 0; i < kSteps; ++i) {
    step();
    mine += pipeline->times().idle_share() / kSteps;
  }
  pipeline->measure_times(false);
  at::Tensor sum = at::tensor({mine}, at::kDouble).to(world_.device());
  at::Tensor most = sum.clone();
  world_.all_reduce(sum).wait();
  world_.all_reduce(most, ReduceOp::kMax).wait();
  idle.mean = sum.item<double>() / world_.size();
  idle.largest = most.item<double>();
  const int stages = static_cast<int>(options_.run.axes.pipeline);
  const int chunks = static_cast<int>(options_.run.parallel.pipeline.chunks);
  const int micro_batches = static_cast<int>(options_.run.training.gradient_accumulation_steps);
  SimulationOptions simulation;  // backward costs twice the forward
  for (const ModelPart& part : pipeline->parts()) {
    const double cost = part.cost > 0 ? part.cost : static_cast<double>(part.count);
    simulation.costs.push_back({.forward = cost, .backward = 2 * cost, .weights = cost});
    idle.blocks += concat(idle.blocks.empty() ? "" : ",", part.count);
  }
  const bool shared = options_.run.parallel.pipeline.shared_vocabulary;
  if (shared) {
    const auto costs = block_costs(model, config.pipeline, config.gradient_checkpointing);
    simulation.embed = costs.front() / stages;
    simulation.head = 3 * costs.back() / stages;
    simulation.embed_backward = 2 * costs.front() / stages;
  }
  const auto schedule =
      make_schedule(options_.run.parallel.pipeline.schedule, stages, micro_batches, chunks, shared);
  idle.bubble = simulate(schedule).bubble();
  idle.bubble_of_parts = simulate(schedule, simulation).bubble();
  return idle;
}

StepBenchmark::Footprint StepBenchmark::read_device() const {
  Footprint footprint;
  if (!world_.device().is_cuda()) return footprint;
  const MemoryUse use = memory_use(world_.device());
  footprint.allocated = use.allocated_bytes;
  footprint.peak_allocated = use.peak_allocated_bytes;
  footprint.peak_reserved = use.peak_reserved_bytes;
  footprint.device_allocations = use.allocations;
  return footprint;
}

std::vector<int64_t> StepBenchmark::over_ranks(std::vector<int64_t> values, bool largest) const {
  at::Tensor reduced = at::tensor(values, at::kLong).to(world_.device());
  world_.all_reduce(reduced, largest ? ReduceOp::kMax : ReduceOp::kMin).wait();
  reduced = reduced.cpu();
  std::copy_n(reduced.const_data_ptr<int64_t>(), values.size(), values.begin());
  return values;
}

programs::AvailableMemory StepBenchmark::least_available() const {
  const programs::AvailableMemory own = programs::available_memory(world_.device());
  const auto least = over_ranks({own.host / ranks_on_host_, own.device}, /*largest=*/false);
  return {.host = least[0], .device = least[1]};
}

void StepBenchmark::synchronize() const {
  if (world_.device().is_cuda()) at::accelerator::synchronizeDevice(world_.device().index());
}

double StepBenchmark::median() const {
  std::vector<double> sorted = times_;
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

// Tokens of the global batch per second and rank: the median step's.
double StepBenchmark::tokens_per_second_and_rank() const {
  std::vector<double> rates;
  for (size_t i = 0; i < times_.size(); ++i) {
    rates.push_back(static_cast<double>(tokens_[i]) / times_[i] / world_.size());
  }
  std::ranges::sort(rates);
  return rates[(rates.size() - 1) / 2];
}

// The largest ratio of a step's time to the line a + b * positions, fitted to all steps by least
// squares.
double StepBenchmark::slowest_over_line() const {
  const auto count = static_cast<double>(times_.size());
  const double mean_time = std::accumulate(times_.begin(), times_.end(), 0.0) / count;
  const double mean = std::accumulate(positions_.begin(), positions_.end(), 0.0) / count;
  double together = 0, alone = 0;
  for (size_t i = 0; i < times_.size(); ++i) {
    const double distance = static_cast<double>(positions_[i]) - mean;
    together += distance * (times_[i] - mean_time);
    alone += distance * distance;
  }
  const double slope = alone > 0 ? together / alone : 0;
  double most = 0;
  for (size_t i = 0; i < times_.size(); ++i) {
    const double line = mean_time + slope * (static_cast<double>(positions_[i]) - mean);
    most = std::max(most, times_[i] / line);
  }
  return most;
}

void StepBenchmark::print(const ModelSpec& model, const DeviceMesh& mesh, int64_t parameters,
                          const Footprint& footprint, const Idle& idle) const {
  const std::vector<int64_t> most = over_ranks(footprint.values(), /*largest=*/true);
  const std::vector<int64_t> least = over_ranks(footprint.values(), /*largest=*/false);
  if (world_.rank() != 0) return;
  const int64_t sequence = options_.run.data.max_seq_length;
  const double tokens_per_s = tokens_per_second_and_rank();
  const double all_tokens = std::accumulate(tokens_.begin(), tokens_.end(), 0.0);
  const double all_time = std::accumulate(times_.begin(), times_.end(), 0.0);
  const auto [fastest, slowest] = std::minmax_element(times_.begin(), times_.end());
  auto mib = [](int64_t bytes) { return bytes >> 20; };
  JsonLine line;
  line.add("model", model.name)
      .add("mode", strategy_name_)
      .add("mesh", concat(mesh.extent(Axis::kPipeline), "x", mesh.extent(Axis::kData), "x",
                          mesh.extent(Axis::kTensor)))
      .add("variant", options_.variant())
      .add("mb", micro_batch_)
      .add("seq", sequence)
      .add("accum", options_.run.training.gradient_accumulation_steps)
      .add("dtype", name_of(options_.run.parallel.precision.parameter))
      .add("world", world_.size())
      .add("params", parameters)
      .add("step_ms", median() * 1e3)
      .add("min_ms", *fastest * 1e3)
      .add("max_ms", *slowest * 1e3)
      .add("optimizer_ms", optimizer_s_ * 1e3)  // of the last step, with the norm
      .add("slowest_over_line", slowest_over_line())
      .add("slowest_step", slowest - times_.begin() + options_.warmup + 1)
      .add("positions", std::accumulate(positions_.begin(), positions_.end(), int64_t{0}) /
                            static_cast<int64_t>(positions_.size()))
      .add("tok_s_gpu", tokens_per_s)
      .add("tok_s_gpu_all_steps", all_tokens / all_time / world_.size())
      .add("mean_length", mean_length_);
  if (model.flops_per_token) {
    line.add("tflops", model.flops_per_token(mean_length_) * tokens_per_s / 1e12);
  }
  line.add("peak_alloc_mib", mib(most[0]))
      .add("peak_alloc_least_mib", mib(least[0]))
      .add("peak_resv_mib", mib(most[1]))
      .add("between_steps_mib", mib(most[10]))
      .add("parameter_mib", mib(most[2]))
      .add("gradient_mib", mib(most[3]))
      .add("optimizer_mib", mib(most[4]))
      .add("buffer_mib", mib(most[5]))
      .add("host_mib", mib(most[6]))
      .add("pinned_mib", mib(most[7]))
      .add("comm_mib_per_step", mib(most[8]))
      .add("device_allocations", most[9]);
  if (choices_.recomputed_blocks >= 0) {
    line.add("recomputed_blocks", choices_.recomputed_blocks)
        .add("planned_activation_mib", mib(choices_.activation_bytes));
  }
  if (choices_.device_bytes >= 0) line.add("offload_gpu_mib", mib(choices_.device_bytes));
  if (idle.measured) {
    line.add("schedule", options_.run.parallel.pipeline.schedule)
        .add("stage_blocks", idle.blocks)
        .add("idle_pct", 100 * idle.mean)
        .add("idle_largest_pct", 100 * idle.largest)
        .add("bubble_pct", 100 * idle.bubble)
        .add("bubble_of_parts_pct", 100 * idle.bubble_of_parts);
  }
  if (offload_.step_s > 0) {
    line.add("to_host_gb_s", offload_.to_host_bytes_per_s / 1e9)
        .add("to_device_gb_s", offload_.to_device_bytes_per_s / 1e9)
        .add("host_update_elements_s", offload_.update_elements_per_s)
        .add("offload_step_ms", offload_.step_s * 1e3);
    // A host that synchronises after every step hides the waits of computation.
    if (!options_.sync) line.add("offload_hidden_pct", 100 * offload_.hidden);
  }
  line.add("build_s", build_s_).add("loss", loss_);
  std::cout << "TESSERA " << line.text() << std::endl;
}

}  // namespace tessera::bench
