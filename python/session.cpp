// SPDX-License-Identifier: MIT
#include "python/session.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "lib/checkpoint/agreement.h"
#include "lib/ops/update.h"
#include "lib/run/loss_scaling.h"
#include "lib/run/optimizer.h"
#include "lib/run/program.h"
#include "lib/run/run_checkpoints.h"
#include "lib/run/update_rules.h"
#include "lib/settings/idle_flags.h"
#include "lib/settings/layout.h"
#include "tessera/checkpoint/checkpoint_writer.h"
#include "tessera/checkpoint/huggingface.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera::python {
namespace {

// Settings of the training loop, which Python controls.
constexpr const char* kOfLoops[] = {"per_device_train_batch_size",
                                    "per_device_eval_batch_size",
                                    "gradient_accumulation_steps",
                                    "num_train_epochs",
                                    "max_steps",
                                    "learning_rate",
                                    "lr_scheduler_type",
                                    "lr_scheduler_kwargs",
                                    "warmup_steps",
                                    "max_grad_norm"};

bool is_of_strategy(const settings::Setting& setting) {
  if (setting.section == settings::Section::kStrategy) return true;
  return setting.section == settings::Section::kTraining &&
         std::ranges::find(kOfLoops, std::string_view(setting.name)) == std::end(kOfLoops);
}

programs::FlagSet read_settings(const SettingTexts& settings, int64_t world,
                                programs::TrainOptions& options) {
  programs::FlagSet flags("tessera.Strategy", "");
  programs::add_flags(flags, options, is_of_strategy);
  std::vector<std::string> arguments;
  for (const auto& [name, value] : settings) {
    check(flags.has(name) && name != "help" && name != "print_config", ErrorCode::kInvalidArgument,
          "tessera.Strategy has no setting ", name, "; docs/reference/flags.md has their names");
    arguments.push_back(concat("--", name, "=", value));
  }
  flags.parse(arguments);
  programs::choose_strategy(flags, world, options);
  for (const programs::IdleFlag& idle : programs::reset_idle_flags(flags, options, world)) {
    if (log_rank() <= 0) log(LogLevel::kInfo, idle.text);
  }
  programs::validate_layout(options);
  programs::check_axes(options, world);
  return flags;
}

ModelSpec with_rules(ModelSpec spec, const programs::TrainOptions& options) {
  programs::add_update_rules(spec, options.training);
  return spec;
}

}  // namespace

Session::Session(Communicator& world, ControlChannel& control, const Model& model,
                 const TensorSource* weights, const std::string& weights_text,
                 const SettingTexts& settings)
    : world_(world),
      control_(control),
      model_(model),
      flags_(read_settings(settings, world.size(), options_)),
      spec_(with_rules(model.spec(), options_)),
      scaler_(programs::loss_scaler_of(options_), world.device()),
      skipped_(at::zeros({}, at::TensorOptions(at::kLong).device(world.device()))) {
  require_same_on_all_ranks(control, "the settings", flags_.values_text());
  require_same_on_all_ranks(
      control, "the model",
      concat(model.language_model.to_json(model.head), " ", model.num_labels));
  require_same_on_all_ranks(control, "the weights", weights_text);
  programs::set_numerics(options_);
  mesh_ = std::make_unique<DeviceMesh>(world, programs::mesh_extents(options_, world.size()));
  strategy_ = make_strategy(programs::parallel_config(options_), *mesh_);
  strategy_->attach(spec_,
                    {.device = world.device(), .seed = options_.training.seed, .source = weights},
                    programs::optimizer_of(options_.training));
  if (scaler_.enabled()) strategy_->set_loss_scale(scaler_.scale());
}

StepResult Session::forward_backward(std::span<const MicroBatch> batches) {
  const StepResult result = strategy_->forward_backward(batches);
  clipped_.reset();
  has_gradient_ = true;
  return result;
}

void Session::check_gradient(const char* call) const {
  check(has_gradient_, ErrorCode::kInvalidArgument, call,
        "() without a gradient; forward_backward() makes one for each step");
}

ClipResult Session::clip(double max_norm) {
  check_gradient("clip");
  check(max_norm >= 0, ErrorCode::kInvalidArgument, "clip(", max_norm,
        "): the norm must be positive, or 0 to measure it only");
  check(!clipped_, ErrorCode::kInvalidArgument,
        "clip() a second time: a step's gradient is clipped at most once");
  const auto [norm, coefficient, factor, overflow] =
      ops::clipping(strategy_->grad_norm_squared(), scaler_.scale().clone(), max_norm);
  strategy_->scale_gradients(factor);
  clipped_ = ClipResult{norm, coefficient, overflow};
  return *clipped_;
}

void Session::optimizer_step(double learning_rate) {
  check(std::isfinite(learning_rate) && learning_rate >= 0, ErrorCode::kInvalidArgument,
        "learning rate ", learning_rate, "; it must be finite, and 0 or more");
  check_gradient("optimizer_step");
  if (!clipped_) clip(0);
  strategy_->optimizer_step(learning_rate, clipped_->overflow);
  scaler_.update(clipped_->overflow);
  skipped_.add_(clipped_->overflow.ne(0));
  clipped_.reset();
  has_gradient_ = false;
  ++steps_;
}

StepResult Session::evaluate(std::span<const MicroBatch> batches) {
  return strategy_->evaluate(batches);
}

std::vector<GeneratedRow> Session::generate(std::span<const std::vector<int64_t>> prompts,
                                            GenerationOptions options) {
  const DecoderConfig& config = model_.language_model.config();
  options.max_positions = config.max_positions;
  options.vocabulary = config.vocabulary;
  return tessera::generate(*strategy_, *mesh_, prompts, options);
}

int64_t Session::updates() const { return steps_ - skipped_.item<int64_t>(); }

std::string Session::save(const std::string& directory, int64_t total_limit) {
  require_same_on_all_ranks(control_, "the directory", directory);
  TrainerState trainer{.steps = steps_, .updates = updates()};
  if (scaler_.enabled()) trainer.loss_scaler = scaler_.state();
  const programs::RunState run{.trainer = trainer,
                               .settings = flags_.config_json(/*indent=*/0),
                               .model = model_.language_model.to_json(model_.head)};
  return save_checkpoint(world_, directory, steps_, strategy_->state(), run.to_json(),
                         {.total_limit = total_limit, .channel = &control_})
      .path;
}

int64_t Session::load(const std::string& path) {
  require_same_on_all_ranks(control_, "the path", path);
  on_first_rank([&] {
    check(std::filesystem::is_directory(path), ErrorCode::kInvalidArgument, path,
          " is no directory; name a checkpoint, or the folder that save() wrote into");
  });
  programs::TrainOptions options = options_;
  // As a path, because the programs treat "auto" and "none" as keywords.
  options.run.resume_from_checkpoint = (std::filesystem::path(".") / path).string();
  const auto resumed = programs::resume(options, world_, *strategy_);
  check(resumed.has_value(), ErrorCode::kInvalidArgument, path, " holds no checkpoint");
  const TrainerState& trainer = resumed->run.trainer;
  steps_ = trainer.steps;
  skipped_.fill_(trainer.steps - trainer.updates);
  if (scaler_.enabled() && trainer.loss_scaler) scaler_.restore(*trainer.loss_scaler);
  clipped_.reset();
  has_gradient_ = false;
  return steps_;
}

void Session::on_first_rank(const std::function<void()>& fn) {
  rank_0_does(control_, [&] {
    fn();
    return std::string();
  });
}

void Session::export_model(const std::string& directory) {
  const at::ScalarType dtype = options_.parallel.precision.parameter;
  std::unique_ptr<HuggingFaceWriter> writer;
  on_first_rank([&] {
    writer =
        std::make_unique<HuggingFaceWriter>(directory, HuggingFaceWriterOptions{.dtype = dtype});
  });
  strategy_->visit_parameters([&](const VisitedParameter& parameter) {
    if (!writer) return;
    writer->add(spec_.stored_name(parameter.block, parameter.name),
                parameter.value.detach().to(at::kCPU, at::kFloat).contiguous());
  });
  on_first_rank([&] {
    writer->add_text("config.json", model_.language_model.to_json(model_.head, dtype));
    writer->commit();
  });
}

std::vector<std::pair<std::string, at::Tensor>> Session::parameters() {
  std::vector<std::pair<std::string, at::Tensor>> all;
  strategy_->visit_parameters([&](const VisitedParameter& parameter) {
    all.emplace_back(spec_.stored_name(parameter.block, parameter.name),
                     parameter.value.detach()
                         .to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true)
                         .contiguous());
  });
  return all;
}

}  // namespace tessera::python
