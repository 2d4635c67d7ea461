#include "lib/run/training_run.h"

#include <algorithm>
#include <cmath>

#include "backends/pipeline/measure.h"
#include "lib/core/clock.h"
#include "lib/core/failure.h"
#include "lib/metrics/statistics.h"
#include "lib/run/device_memory.h"
#include "lib/run/layout.h"
#include "lib/run/memory_advice.h"
#include "lib/run/output.h"
#include "lib/run/step_flops.h"
#include "lib/settings/table.h"
#include "tessera/backends/pipeline/partition.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"
#include "tessera/optim/adamw.h"

namespace tessera::programs {
namespace {

constexpr int kInterrupted = 130;  // as a shell says of SIGINT

std::string packed(const std::vector<int64_t>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t)};
}

std::vector<int64_t> unpacked(const std::string& bytes) {
  std::vector<int64_t> values(bytes.size() / sizeof(int64_t));
  std::copy_n(bytes.data(), bytes.size(), reinterpret_cast<char*>(values.data()));
  return values;
}

// With --pipeline_balance measured: what each block takes for a micro-batch of the training data.
void measure_balance(const Prepared& prepared, const DeviceMesh& mesh, ParallelConfig& config) {
  Communicator& data = mesh.axis(Axis::kData);
  DataLoader loader(prepared.train, prepared.loader_options(data, /*training=*/true));
  const BuildContext context{
      .device = data.device(),
      .seed = prepared.options.seed,
      .tensor = mesh.extent(Axis::kTensor) > 1 ? &mesh.axis(Axis::kTensor) : nullptr,
      .sequence_parallel = config.sequence_parallel};
  config.pipeline.block_costs = measure_block_costs(
      prepared.model, context, config.precision.parameter, loader.next().front(), mesh.world());
}

std::string counts_text(const std::vector<ModelPart>& parts) {
  std::string text;
  for (const ModelPart& part : parts) text += concat(text.empty() ? "" : ", ", part.count);
  return text;
}

}  // namespace

TrainingRun::TrainingRun(const Prepared& prepared, const FlagSet& flags,
                         const std::vector<std::string>& argv, Communicator& world,
                         const LaunchInfo& launch, ControlChannel& control,
                         const StopSignals* signals)
    : prepared_(prepared),
      options_(prepared.options),
      flags_(flags),
      argv_(argv),
      world_(world),
      launch_(launch),
      control_(control),
      signals_(signals),
      agreement_(world) {}

TrainingRun::~TrainingRun() = default;

int TrainingRun::execute() {
  try {
    agree();
    plan();
    describe();
    if (options_.dry_run) return 0;
    build();
    open_output();
    train();
    end_training();
    if (!interrupted_) {
      finish(0, export_final());
      return 0;
    }
    finish(kInterrupted, std::nullopt);
    if (reports()) log(LogLevel::kWarning, how_it_stopped("Ctrl-C"));
    return kInterrupted;
  } catch (const Error& error) {
    record_failure(error);
    throw;
  } catch (const std::exception& error) {
    record_failure(error);
    if (!is_out_of_memory(error)) throw;
    fail(ErrorCode::kResourceExhausted,
         memory_advice(prepared_, world_.size(), error.what(), !world_.device().is_cpu()));
  }
}

// From here on every rank knows that the others do the same work on the same data.
void TrainingRun::agree() {
  require_same_on_all_ranks(control_, "the arguments", flags_.values_text());
  require_same_on_all_ranks(control_, "the training data (SHA-256)", prepared_.dataset_sha256);
  require_same_on_all_ranks(control_, "the number of validation rows",
                            std::to_string(prepared_.validation.size()));
}

LossScalerConfig TrainingRun::loss_scaler() const {
  const bool dynamic = options_.loss_scale == 0;
  return {.enabled = options_.dtype == "fp16",
          .initial_scale = dynamic ? options_.initial_loss_scale : options_.loss_scale,
          .growth_factor = dynamic ? 2.0 : 1.0,
          .backoff_factor = dynamic ? 0.5 : 1.0,
          .growth_interval = options_.loss_scale_window,
          .min_scale = dynamic ? options_.min_loss_scale : options_.loss_scale,
          .max_scale = dynamic ? kLargestLossScale : options_.loss_scale};
}

TrainerOptions TrainingRun::trainer_options() const {
  const double warmup = options_.warmup_steps;
  const LrScheduleKind kind = parse_lr_schedule(options_.lr_scheduler_type);
  return {
      .device = world_.device(),
      .max_steps = total_steps_,
      .max_grad_norm = options_.max_grad_norm,
      .schedule = {.kind = kind,
                   .peak = options_.learning_rate,
                   .warmup_steps = static_cast<int64_t>(
                       warmup < 1 ? std::ceil(warmup * static_cast<double>(total_steps_)) : warmup),
                   .total_steps = total_steps_,
                   .options = parse_lr_schedule_options(kind, options_.lr_scheduler_kwargs)},
      .loss_scaler = loss_scaler(),
      .before_update =
          [this] {
            if (writer_) writer_->before_update();
          },
      .max_nonfinite_steps = options_.max_nonfinite_steps,
      .max_overflow_steps = options_.max_overflow_steps};
}

int64_t TrainingRun::last_step() const {
  if (options_.max_steps > 0) return options_.max_steps;
  const auto per_epoch = static_cast<double>(train_loader_->steps_per_epoch());
  const auto steps = static_cast<int64_t>(std::ceil(options_.num_train_epochs * per_epoch));
  return data_begun_ + steps;
}

// Everything that can be refused without memory for the model.
void TrainingRun::plan() {
  mesh_ = std::make_unique<DeviceMesh>(world_, mesh_extents(options_, world_.size()));
  Communicator& data = mesh_->axis(Axis::kData);
  train_loader_ = std::make_unique<DataLoader>(prepared_.train,
                                               prepared_.loader_options(data, /*training=*/true));
  total_steps_ = last_step();
  ParallelConfig config = parallel_config(prepared_, options_);
  strategy_ = make_strategy(config, *mesh_);
  if (options_.pipeline_balance == "measured" && mesh_->extent(Axis::kPipeline) > 1 &&
      !options_.dry_run) {
    measure_balance(prepared_, *mesh_, config);
    strategy_ = make_strategy(config, *mesh_);
  }
  if (reports() && mesh_->extent(Axis::kPipeline) > 1) {
    const auto parts = partition(prepared_.model, config.pipeline, mesh_->extent(Axis::kPipeline),
                                 config.gradient_checkpointing);
    log(LogLevel::kInfo, "pipeline stages of ", counts_text(parts), " blocks");
  }
}

void TrainingRun::build() {
  // The same on all ranks, so that all say the same.
  const AvailableMemory own = available_memory(world_.device());
  const std::vector<int64_t> least = largest_over_ranks({-own.host, -own.device});
  planned_ = check_memory(prepared_, world_.device(), world_.size(), launch_.local_size,
                          {.host = -least[0], .device = -least[1]});
  const BuildContext context{
      .device = world_.device(), .seed = options_.seed, .source = prepared_.weights.get()};
  strategy_->attach(prepared_.model, context,
                    make_adamw({.beta1 = options_.adam_beta1,
                                .beta2 = options_.adam_beta2,
                                .epsilon = options_.adam_epsilon,
                                .weight_decay = options_.weight_decay}));
  resumed_ = resume(options_, world_, *strategy_);
  if (resumed_) go_on();
  trainer_ = std::make_unique<Trainer>(*strategy_, trainer_options());
  if (resumed_) trainer_->restore(resumed_->run.trainer);
  const StrategyMemory memory = strategy_->memory();
  memory_ =
      largest_over_ranks({memory.parameter_bytes, memory.gradient_bytes, memory.optimizer_bytes,
                          memory.buffer_bytes, memory.host_bytes, memory.pinned_bytes});
  const std::string dtype = options_.dtype == "fp32" && options_.tf32 ? "tf32" : options_.dtype;
  peak_flops_ = metrics::peak_flops_per_second(device_name(world_.device()).c_str(), dtype.c_str())
                    .value_or(0);
}

// The step goes on; the data does where it is the same, else it begins.
void TrainingRun::go_on() {
  const RunState& run = resumed_->run;
  const auto say = [&](const std::string& what, const std::vector<std::string>& texts) {
    if (!reports() || texts.empty()) return;
    std::string all;
    for (const std::string& text : texts) all += (all.empty() ? "" : "; ") + text;
    log(LogLevel::kInfo, what, all);
  };
  const std::vector<std::string> other =
      run.other_data(data_identity(prepared_, train_loader_->global_batch_size()));
  say("settings that are not those of the checkpoint: ",
      run.other_settings(flags_.config_json(/*indent=*/0)));
  say("weights, moments and step go on, the data begins anew: ", other);
  steps_ = data_begun_ = run.trainer.steps;
  best_ = run.best;
  if (other.empty()) {
    train_loader_->restore(run.data);
    const int64_t batch = train_loader_->global_batch_size();
    data_begun_ -=
        run.data.epoch * train_loader_->steps_per_epoch() + (run.data.consumed + batch - 1) / batch;
  }
  total_steps_ = last_step();
  if (steps_ >= total_steps_ && reports()) {
    log(LogLevel::kInfo, "nothing is left to train: the checkpoint is at step ", steps_,
        ", the run ends at step ", total_steps_);
  }
}

void TrainingRun::describe() {
  if (!reports()) return;
  for (const std::string& notice : flags_.notices()) log(LogLevel::kInfo, notice);
  for (const std::string& notice : prepared_.notices) log(LogLevel::kInfo, notice);
  const int64_t batch = train_loader_->global_batch_size();
  if (const int64_t rest = prepared_.train.size() % batch; rest != 0) {
    log(LogLevel::kInfo, "the last batch of an epoch has ", rest, " of ", batch,
        " rows; it is filled with rows that count for nothing");
  }
  if (!options_.dry_run) return;
  std::printf(
      "%s: %lld parameters, %s on %d rank(s) (pipeline %d x data %d x tensor %d), "
      "global batch %lld, %lld steps\n%s\n",
      prepared_.model.name.c_str(), static_cast<long long>(prepared_.parameter_count()),
      options_.strategy.c_str(), world_.size(), mesh_->extent(Axis::kPipeline),
      mesh_->extent(Axis::kData), mesh_->extent(Axis::kTensor), static_cast<long long>(batch),
      static_cast<long long>(total_steps_),
      memory_need(prepared_, world_.size(), !world_.device().is_cpu()).c_str());
}

void TrainingRun::open_output() {
  if (reports()) {
    check(prepared_.output_lock != nullptr, ErrorCode::kInternal, "rank 0 has not locked ",
          options_.output_dir);
    prepare_output_directory(options_, *prepared_.output_lock);
    write_text_file(options_.output_dir + "/config.json", flags_.config_json() + "\n");
    recorder_ = std::make_unique<metrics::Recorder>(make_sinks(options_), options_.logging_steps);
    recorder_->start(start_record());
    for (const metrics::DataRecord& file : prepared_.data_files) recorder_->data(file);
    if (resumed_) recorder_->checkpoint({.path = resumed_->path, .restored_from = resumed_->path});
  }
  start_sampler();  // nobody trains when rank 0 cannot write
  if (options_.save_strategy != "no") {
    writer_ = std::make_unique<CheckpointWriter>(
        world_, options_.output_dir,
        CheckpointOptions{.total_limit = options_.save_total_limit,
                          .asynchronous = options_.save_async,
                          .late_copies = true,
                          .channel = &control_,
                          .locked = true});
    writer_->resume_from(steps_);
    if (options_.load_best_model_at_end && best_) writer_->keep(best_->step);
  }
  if (world_.size() > 1) rank_times_.emplace(world_);
  run_memory_ = std::make_unique<RunMemory>(prepared_, *mesh_, planned_);
  reset_device_peak(world_.device());
}

metrics::RunStartRecord TrainingRun::start_record() const {
  metrics::RunStartRecord r;
  const auto or_else = [](const std::string& text, const std::string& other) {
    return text.empty() ? other : text;
  };
  r.argv = argv_;
  r.flags = flags_.changed_text();
  if (!r.flags.empty()) r.flags.erase(0, 1);
  r.config = {flags_.config_json(/*indent=*/0)};
  r.world_size = world_.size();
  r.dp = mesh_->extent(Axis::kData);
  r.tp = mesh_->extent(Axis::kTensor);
  r.pp = mesh_->extent(Axis::kPipeline);
  r.global_batch_size = train_loader_->global_batch_size();
  const DataLoaderOptions loader =
      prepared_.loader_options(mesh_->axis(Axis::kData), /*training=*/true);
  TrainOptions settled = options_;
  settled.packing = loader.packing;
  settled.padding_free = loader.padding_free ? "true" : "false";
  r.settings = settings::record(settled, prepared_.program);
  r.exp = settings::run_name(settled, r.world_size, !world_.device().is_cpu());
  if (peak_flops_ > 0 && prepared_.model.flops_per_token) {
    r.mfu_formula = mfu_formula();
    r.peak_flops_per_second = peak_flops_;
  }
  r.parameter_dtype = options_.dtype;
  r.gradient_dtype = or_else(options_.gradient_dtype, options_.dtype);
  r.reduce_dtype = or_else(options_.reduce_dtype, r.gradient_dtype);
  r.master_dtype = r.moment_dtype = "fp32";
  r.model = prepared_.model.name;
  r.num_parameters = prepared_.parameter_count();
  r.dataset = prepared_.train_path;
  r.dataset_sha256 = prepared_.dataset_sha256;
  r.num_train_samples = prepared_.train.size();
  r.num_train_steps = total_steps_;
  r.seed = options_.seed;
  r.device = device_name(world_.device());
  r.transport = world_.transport();
  r.launcher = launch_.launcher;
  fill_versions(r);
  return r;
}

std::vector<int64_t> TrainingRun::largest_over_ranks(const std::vector<int64_t>& values) {
  std::vector<int64_t> largest = values;
  for (const std::string& bytes : control_.exchange(packed(values))) {
    const std::vector<int64_t> others = unpacked(bytes);
    for (size_t i = 0; i < largest.size(); ++i) largest[i] = std::max(largest[i], others.at(i));
  }
  return largest;
}

}  // namespace tessera::programs
