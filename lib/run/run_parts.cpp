// SPDX-License-Identifier: MIT
#include "lib/run/run_parts.h"

#include <algorithm>
#include <cstdio>
#include <random>

#include "backends/common/fp8_choice.h"
#include "backends/pipeline/measure.h"
#include "lib/checkpoint/agreement.h"
#include "lib/core/joined.h"
#include "lib/core/number_text.h"
#include "lib/run/loss_scaling.h"
#include "lib/run/optimizer.h"
#include "lib/run/recomputation.h"
#include "lib/settings/layout.h"
#include "lib/settings/memory_size.h"
#include "lib/settings/train_flags.h"
#include "tessera/backends/pipeline/partition.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera::programs {
namespace {

std::string packed(const std::vector<int64_t>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t)};
}

std::vector<int64_t> unpacked(const std::string& bytes) {
  std::vector<int64_t> values(bytes.size() / sizeof(int64_t));
  std::copy_n(bytes.data(), bytes.size(), reinterpret_cast<char*>(values.data()));
  return values;
}

std::string random_id() {
  constexpr int kDigits = 32;
  std::random_device device;
  std::string id;
  for (int i = 0; i < kDigits; ++i) id += "0123456789abcdef"[device() % 16];
  return id;
}

// Builds single blocks of the run, to measure them.
BuildContext measured_on(const RunTask& task, const DeviceMesh& mesh,
                         const ParallelConfig& config) {
  return {.device = mesh.world().device(),
          .seed = task.options().training.seed,
          .tensor = mesh.extent(Axis::kTensor) > 1 ? &mesh.axis(Axis::kTensor) : nullptr,
          .sequence_parallel = config.sequence_parallel};
}

// --pipeline_balance measured: times each block on a micro-batch of the training data.
void measure_balance(const RunTask& task, const DeviceMesh& mesh, ParallelConfig& config) {
  const Communicator& data = mesh.axis(Axis::kData);
  config.pipeline.block_costs = measure_block_costs(
      task.model(), measured_on(task, mesh, config), config.precision.parameter,
      task.steps(data, Strategy::Pass::kTraining)->next().front(), mesh.world());
}

// --fp8 auto: what the checkpoint says that the run goes on from, else as measured on a micro-batch
// of the training data.
void choose_fp8(const RunContext& run, const DeviceMesh& mesh, ParallelConfig& config,
                RunParts& parts) {
  parts.fp8_layers = kept_fp8_layers(run.options(), run.world);
  const bool kept = !parts.fp8_layers.empty();
  if (!kept) {
    const Communicator& data = mesh.axis(Axis::kData);
    parts.fp8_layers = name_of(measure_fp8_layers(
        run.task.model(), measured_on(run.task, mesh, config), config.precision.parameter,
        run.task.steps(data, Strategy::Pass::kTraining)->next().front(), mesh.world()));
  }
  use_fp8_layers(fp8_layers_of(parts.fp8_layers), config.precision);
  if (!run.reports()) return;
  log(LogLevel::kInfo, "fp8 auto: layers in 8 bits: ", parts.fp8_layers,
      kept           ? ", as in the checkpoint"
      : run.on_gpu() ? ", as measured"
                     : ", as a CPU has no such products");
}

// "pipeline stages of 7, 7 blocks", with their times if measured.
std::string stages_text(const std::vector<ModelPart>& parts, bool measured) {
  std::vector<std::string> counts, times;
  for (const ModelPart& part : parts) {
    counts.push_back(concat(part.count));
    times.push_back(printed("%.3g", 1000 * part.cost));
  }
  const std::string text = concat("pipeline stages of ", joined(counts), " blocks");
  return measured ? concat(text, "; measured: ", joined(times), " ms per micro-batch") : text;
}

// Least memory available to any rank; of the host a share. Collective and equal on all ranks, so
// that all decide alike.
AvailableMemory least_available(const RunContext& run, int shares_of_host) {
  const AvailableMemory own = available_memory(run.world.device());
  const std::vector<int64_t> least =
      largest_over_ranks(run.control, {-(own.host / shares_of_host), -own.device});
  return {.host = -least[0], .device = -least[1]};
}

// With --activation_memory.
void choose_recomputation(const RunContext& run, const RunPlanner& planner, ParallelConfig& config,
                          RunParts& parts) {
  parts.recomputation =
      planner.choose_recomputation(config, run.world.device(), run.world.size(),
                                   least_available(run, std::max(1, run.launch.local_size)));
  config.recomputed_blocks = blocks_of(parts.recomputation);
  parts.strategy = make_strategy(config, *parts.mesh);
  if (!run.reports()) return;
  std::vector<std::string> held;
  for (const StageRecomputation& stage : parts.recomputation) {
    held.push_back(mebibytes(stage.held()));
  }
  log(LogLevel::kInfo, "activations may take ", mebibytes(least_allowed(parts.recomputation)),
      " of a rank: ", counts_text(parts.recomputation), " recomputed in backward, planned ",
      joined(held));
}

// With --offload optimizer, unless --offload_keep_on_gpu says how much.
void choose_device_bytes(const RunContext& run, const RunPlanner* planner, ParallelConfig& config,
                         RunParts& parts) {
  const auto asked = parse_offload_gpu_memory(run.options().memory.offload_gpu);
  const bool chooses = config.offload.what == Offload::kOptimizer && asked && asked->automatic;
  if (chooses && planner != nullptr) {
    config.offload.device_bytes = planner->choose_device_bytes(
        config, run.world.device(), run.world.size(), least_available(run, /*shares_of_host=*/1));
    parts.strategy = make_strategy(config, *parts.mesh);
    if (run.reports() && run.on_gpu()) {
      log(LogLevel::kInfo, "offload: up to ",
          mebibytes(static_cast<double>(config.offload.device_bytes)),
          " of masters and moments stay on the GPU, as the plan leaves free; "
          "--offload_keep_on_gpu 0 offloads all");
    }
  }
  parts.offload_device_bytes = config.offload.device_bytes;
}

std::string memory_need(const RunContext& run, const RunParts& parts) {
  const RunPlanner* planner = run.task.planner();
  if (planner == nullptr) return "memory is not planned";
  return planner->memory_need(run.world.size(), run.on_gpu(), blocks_of(parts.recomputation));
}

// The last step of the requested epochs over this data, or --max_steps.
int64_t last_step(const TrainOptions& o, const RunParts& parts) {
  const int64_t steps = steps_of(o.training, parts.batches->steps_per_epoch());
  return o.training.max_steps > 0 ? steps : parts.data_begun + steps;
}

TrainerOptions trainer_options(const RunContext& run, const RunParts& parts) {
  const TrainOptions& o = run.options();
  const LrScheduleKind kind = o.training.lr_scheduler_type;
  return {.device = run.world.device(),
          .max_steps = parts.total_steps,
          .max_grad_norm = o.training.max_grad_norm,
          .schedule = {.kind = kind,
                       .peak = o.training.learning_rate,
                       .warmup_steps = warmup_steps_of(o.training, parts.total_steps),
                       .total_steps = parts.total_steps,
                       .options = parse_lr_schedule_options(kind, o.training.lr_scheduler_kwargs)},
          .loss_scaler = loss_scaler_of(o),
          .before_update =
              [&parts] {
                if (parts.writer) parts.writer->before_update();
              },
          .max_nonfinite_steps = o.run.max_nonfinite_steps,
          .max_overflow_steps = o.run.max_overflow_steps};
}

// Continues at the saved step; the data continues if unchanged, else starts anew.
void go_on(const RunContext& run, RunParts& parts) {
  const RunState& state = parts.resumed->run;
  const std::string base = run.task.base();
  check(state.base.empty() || base.empty() || state.base == base, ErrorCode::kInvalidArgument,
        parts.resumed->path, ": its adapters belong to another base model (", state.base,
        ") than this run's (", base,
        "); give the model that they were trained on, or --resume_from_checkpoint none");
  const auto say = [&](const std::string& what, const std::vector<std::string>& texts) {
    if (!run.reports() || texts.empty()) return;
    std::string all;
    for (const std::string& text : texts) all += (all.empty() ? "" : "; ") + text;
    log(LogLevel::kInfo, what, all);
  };
  const int64_t batch = parts.batches->global_batch_size();
  const std::vector<std::string> other = state.other_data(run.task.data_identity(batch));
  say("settings that are not those of the checkpoint: ",
      state.other_settings(run.flags.config_json(/*indent=*/0)));
  say("weights, moments and step go on, the data begins anew: ", other);
  const std::vector<std::string> evaluation =
      state.other_evaluation(run.task.evaluation_identity());
  say("not as in the checkpoint, so metrics before and after it do not compare: ", evaluation);
  parts.steps = parts.data_begun = state.trainer.steps;
  if (evaluation.empty()) parts.best = state.best;
  if (other.empty()) {
    parts.batches->restore(state.data);
    parts.data_begun -= state.data.epoch * parts.batches->steps_per_epoch() +
                        (state.data.consumed + batch - 1) / batch;
  }
  parts.total_steps = last_step(run.options(), parts);
  check_steps_of_best(run.options(), parts.total_steps);
  if (parts.steps >= parts.total_steps && run.reports()) {
    log(LogLevel::kInfo, "nothing is left to train: the checkpoint is at step ", parts.steps,
        ", the run ends at step ", parts.total_steps);
  }
}

}  // namespace

OptimizerFactory RunTask::optimizer() const { return optimizer_of(options_.training); }

std::vector<int64_t> largest_over_ranks(ControlChannel& control,
                                        const std::vector<int64_t>& values) {
  std::vector<int64_t> largest = values;
  for (const std::string& bytes : control.exchange(packed(values))) {
    const std::vector<int64_t> others = unpacked(bytes);
    for (size_t i = 0; i < largest.size(); ++i) largest[i] = std::max(largest[i], others.at(i));
  }
  return largest;
}

double RunParts::epoch() const {
  return static_cast<double>(steps - data_begun) / static_cast<double>(batches->steps_per_epoch());
}

std::unique_ptr<RunParts> plan_run(const RunContext& run) {
  auto parts = std::make_unique<RunParts>();
  const TrainOptions& o = run.options();
  if (o.run.check_communication) {
    parts->communication_check = std::make_unique<CommunicationCheck>(run.world);
  }
  Communicator& world =
      parts->communication_check ? parts->communication_check->world() : run.world;
  parts->mesh = std::make_unique<DeviceMesh>(world, mesh_extents(o, world.size()));
  const DeviceMesh& mesh = *parts->mesh;
  parts->batches = run.task.steps(mesh.axis(Axis::kData), Strategy::Pass::kTraining);
  parts->total_steps = last_step(o, *parts);
  check_steps_of_best(o, parts->total_steps);
  ParallelConfig config = run.task.parallel_config();
  parts->strategy = make_strategy(config, mesh);
  const int stages = mesh.extent(Axis::kPipeline);
  const bool measured = o.axes.balance == StageBalance::kMeasured && stages > 1 && !o.run.dry_run;
  if (measured) {
    measure_balance(run.task, mesh, config);
    parts->strategy = make_strategy(config, mesh);
  }
  if (o.parallel.precision.fp8 == Fp8::kAuto && !o.run.dry_run) {
    choose_fp8(run, mesh, config, *parts);
    parts->strategy = make_strategy(config, mesh);
  }
  const RunPlanner* planner = run.task.planner();
  if (!o.memory.activations.empty() && planner != nullptr) {
    choose_recomputation(run, *planner, config, *parts);
  }
  choose_device_bytes(run, planner, config, *parts);
  parts->parallel = config;
  if (run.reports() && stages > 1) {
    const auto shares =
        partition(run.task.model(), config.pipeline, stages, config.gradient_checkpointing);
    log(LogLevel::kInfo, stages_text(shares, measured));
  }
  return parts;
}

void describe(const RunContext& run, const RunParts& parts) {
  if (!run.reports()) return;
  for (const std::string& notice : run.flags.notices()) log(LogLevel::kInfo, notice);
  for (const std::string& notice : run.task.notices()) log(LogLevel::kInfo, notice);
  const int64_t batch = parts.batches->global_batch_size();
  if (const int64_t rest = run.task.training_rows() % batch; rest != 0) {
    log(LogLevel::kInfo, "the last batch of an epoch has ", rest, " of ", batch,
        " rows; it is filled with rows that count for nothing");
  }
  const OutputOptions& output = run.options().output;
  const int64_t save_steps = output.save_steps.of(parts.total_steps);
  if (output.save_strategy == SaveStrategy::kNo && parts.total_steps >= save_steps) {
    log(LogLevel::kInfo,
        "no checkpoints are written (--save_strategy no), so a run that is ended early is lost; "
        "--save_strategy steps writes one every ",
        save_steps, " steps");
  }
  if (!run.options().run.dry_run) return;
  const ParameterCount count = parameter_count(run.task.model());
  const std::string trained =
      count.trained == count.all ? "" : concat(", ", count.trained, " of them trainable");
  const int contexts = parts.mesh->extent(Axis::kContext);
  std::printf(
      "%s: %lld parameters%s, %s on %d rank(s) (pipeline %d x data %d x tensor %d%s), "
      "global batch %lld, %lld steps\n%s\n",
      run.task.model().name.c_str(), static_cast<long long>(count.all), trained.c_str(),
      run.options().parallel.strategy.c_str(), run.world.size(),
      parts.mesh->extent(Axis::kPipeline), parts.mesh->extent(Axis::kData),
      parts.mesh->extent(Axis::kTensor),
      contexts > 1 ? concat(" x context ", contexts).c_str() : "", static_cast<long long>(batch),
      static_cast<long long>(parts.total_steps), memory_need(run, parts).c_str());
}

void build(const RunContext& run, RunParts& parts) {
  const RunPlanner* planner = run.task.planner();
  if (planner != nullptr) {
    parts.checked = planner->check_memory(
        run.world.device(), run.world.size(), run.launch.local_size,
        least_available(run, /*shares_of_host=*/1), blocks_of(parts.recomputation));
  }
  if (parts.checked) {
    parts.checked->layout.parallel.offload.device_bytes = parts.offload_device_bytes;
  }
  const BuildContext context{.device = run.world.device(),
                             .seed = run.options().training.seed,
                             .source = run.task.weights()};
  parts.strategy->attach(run.task.model(), context, run.task.optimizer());
  parts.resumed = resume(run.options(), run.world, *parts.strategy);
  if (parts.resumed) go_on(run, parts);
  parts.trainer = std::make_unique<Trainer>(*parts.strategy, trainer_options(run, parts));
  if (parts.resumed) parts.trainer->restore(parts.resumed->run.trainer);
  const StrategyMemory memory = parts.strategy->memory();
  parts.memory = largest_over_ranks(
      run.control, {memory.parameter_bytes, memory.gradient_bytes, memory.optimizer_bytes,
                    memory.buffer_bytes, memory.host_bytes, memory.pinned_bytes});
}

void open_checkpoints(const RunContext& run, RunParts& parts) {
  const TrainOptions& o = run.options();
  if (o.output.save_strategy == SaveStrategy::kNo) return;
  if (parts.resumed) parts.id = parts.resumed->run.id;
  if (parts.id.empty()) parts.id = rank_0_does(run.control, random_id);
  parts.writer =
      std::make_unique<CheckpointWriter>(run.world, o.output.output_dir,
                                         CheckpointOptions{.total_limit = o.output.save_total_limit,
                                                           .asynchronous = o.output.save_async,
                                                           .late_copies = true,
                                                           .channel = &run.control,
                                                           .locked = true});
  parts.writer->resume_from(parts.steps);
  if (o.output.load_best_model_at_end && parts.best) parts.writer->keep(parts.best->step);
}

}  // namespace tessera::programs
