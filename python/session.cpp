// SPDX-License-Identifier: MIT
#include "python/session.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "lib/checkpoint/agreement.h"
#include "lib/checkpoint/expert_files.h"
#include "lib/checkpoint/slice_runs.h"
#include "lib/ops/update.h"
#include "lib/run/adapters.h"
#include "lib/run/imported_model.h"
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
#include "tessera/model/target_weights.h"
#include "tessera/program/stored_names.h"

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
  if (setting.section == settings::Section::kAdapters) return true;
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

// PEFT's name of what the model does; empty for a module with its own loss.
std::string task_type(const Model& model) {
  if (model.program && model.program->gives_loss()) return "";
  return model.head == ModelHead::kCausal ? "CAUSAL_LM" : "SEQ_CLS";
}

ModelSpec trained_model(const Model& model, const programs::TrainOptions& options,
                        std::optional<AdapterConfig>& adapter) {
  ModelSpec spec = model.spec();
  const DecoderConfig& config = model.language_model.config();
  adapter =
      programs::add_adapters(spec, options.lora,
                             {.base_model = model.weights.empty() ? config.name : model.weights,
                              .task_type = task_type(model),
                              .fan_in_fan_out = config.model_type == "gpt2"});
  programs::add_update_rules(spec, options.training);
  return spec;
}

at::Tensor on_host(const at::Tensor& value, at::ScalarType dtype) {
  return value.detach().to(at::kCPU, dtype, /*non_blocking=*/false, /*copy=*/true).contiguous();
}

// Values of shifted places, [rows, tokens], in the places of the labels as they were given.
at::Tensor in_given_places(const at::Tensor& values) {
  const int64_t tokens = values.size(1);
  const at::Tensor given = at::zeros_like(values);
  given.narrow(1, 1, tokens - 1).copy_(values.narrow(1, 0, tokens - 1));
  return given;
}

// The inverse.
at::Tensor in_shifted_places(const at::Tensor& values) {
  const int64_t tokens = values.size(1);
  const at::Tensor shifted = at::zeros_like(values);
  shifted.narrow(1, 0, tokens - 1).copy_(values.narrow(1, 1, tokens - 1));
  return shifted;
}

}  // namespace

Session::Session(Communicator& world, ControlChannel& control, const Model& model,
                 const TensorSource* weights, const std::string& weights_text,
                 const SettingTexts& settings)
    : world_(world),
      control_(control),
      model_(model),
      flags_(read_settings(settings, world.size(), options_)),
      spec_(trained_model(model, options_, adapter_)),
      scaler_(programs::loss_scaler_of(options_), world.device()),
      skipped_(at::zeros({}, at::TensorOptions(at::kLong).device(world.device()))) {
  require_same_on_all_ranks(control, "the settings", flags_.values_text());
  require_same_on_all_ranks(control, "the model", model.identity());
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

std::vector<at::Tensor> Session::log_probabilities(std::span<const MicroBatch> batches) {
  const std::vector<at::Tensor> of_targets =
      strategy_->predict(batches, [&](const at::Tensor& scores, size_t index) {
        const MicroBatch& batch = batches[index];
        const at::Tensor labels = batch.labels.flatten();
        const at::Tensor& positions = batch.head_positions;
        const at::Tensor chosen = positions.defined() ? labels.index_select(0, positions) : labels;
        const at::Tensor values = log_probabilities_of(scores, chosen);
        if (!positions.defined()) return values.view(batch.labels.sizes());
        return at::zeros({labels.numel()}, values.options())
            .index_copy(0, positions, values)
            .view(batch.labels.sizes());
      });
  std::vector<at::Tensor> given;
  for (const at::Tensor& values : of_targets) given.push_back(in_given_places(values.cpu()));
  return given;
}

StepResult Session::forward_backward(std::vector<MicroBatch> batches, double loss,
                                     std::span<const at::Tensor> derivatives) {
  int64_t targets = 0;
  for (const MicroBatch& batch : batches) targets += batch.target_count;
  Communicator& data = mesh_->axis(Axis::kData);
  const at::Tensor sums = at::tensor({loss, static_cast<double>(targets)}, at::kDouble);
  const at::Tensor all = sums.to(world_.device());
  data.all_reduce(all).wait();
  // A micro-batch's weighted sum is divided by all targets, a mean of the ranks by their number.
  const at::Tensor factor = all[1] / -data.size();
  for (size_t i = 0; i < batches.size(); ++i) {
    const at::Tensor weights =
        in_shifted_places(derivatives[i]).to(world_.device()) * factor.to(at::kFloat);
    batches[i].extra[kTargetWeights] = weights;
  }
  StepResult result = forward_backward(batches);
  result.loss = (all[0] / data.size()).to(at::kFloat);
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
                               .model = model_.config_json(),
                               .adapter = adapter_ ? adapter_->to_json() : ""};
  const std::vector<StateTensor> state = programs::state_of_run(*strategy_, options_);
  return save_checkpoint(world_, directory, steps_, state, run.to_json(),
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
    writer = std::make_unique<HuggingFaceWriter>(
        directory,
        adapter_ ? adapter_writer_options(spec_) : HuggingFaceWriterOptions{.dtype = dtype});
  });
  const std::string names = adapter_ && !model_.program ? stored_names_by_expert(spec_) : "";
  const Json listed = Json::parse(names.empty() ? "{}" : names, {}, "stored names");
  strategy_->visit_parameters([&](const VisitedParameter& parameter) {
    if (!writer || (adapter_ && parameter.placement.frozen)) return;
    const at::Tensor host = parameter.value.detach().to(at::kCPU, at::kFloat).contiguous();
    if (const auto stored = listed.find(parameter.block + "." + parameter.name)) {
      for (const auto& [name, part] : stored_tensors(*stored, host)) writer->add(name, part);
      return;
    }
    writer->add(spec_.stored_name(parameter.block, parameter.name), host);
  });
  strategy_->visit_buffers([&](const VisitedParameter& buffer) {
    if (!writer || adapter_) return;
    writer->add_buffer(spec_.stored_name(buffer.block, buffer.name), buffer.value);
  });
  on_first_rank([&] {
    if (adapter_) {
      writer->add_text("adapter_config.json", adapter_->to_json());
    } else if (model_.program) {
      programs::add_program_files(*writer, model_.program->directory);
    } else {
      writer->add_text("config.json", model_.language_model.to_json(model_.head, dtype));
    }
    writer->commit();
  });
}

std::vector<std::pair<std::string, at::Tensor>> Session::parameters() {
  std::vector<std::pair<std::string, at::Tensor>> all;
  strategy_->visit_parameters([&](const VisitedParameter& parameter) {
    all.emplace_back(spec_.stored_name(parameter.block, parameter.name),
                     on_host(parameter.value, at::kFloat));
  });
  return all;
}

std::vector<std::pair<std::string, at::Tensor>> Session::buffers() {
  std::vector<std::pair<std::string, at::Tensor>> all;
  strategy_->visit_buffers([&](const VisitedParameter& buffer) {
    all.emplace_back(spec_.stored_name(buffer.block, buffer.name),
                     on_host(buffer.value, buffer.value.scalar_type()));
  });
  return all;
}

std::vector<std::pair<std::string, at::Tensor>> Session::state_dict() {
  std::vector<std::pair<std::string, at::Tensor>> all = parameters();
  if (model_.program) {
    const std::map<std::string, at::Tensor> owners(all.begin(), all.end());
    for (const auto& [name, owner] : model_.program->same_as) {
      const auto found = owners.find(owner);
      if (found != owners.end()) all.emplace_back(name, found->second);
    }
  }
  for (auto& buffer : buffers()) all.push_back(std::move(buffer));
  return all;
}

void Session::load_state_dict(const TensorSource& given, const std::string& given_text,
                              const std::map<std::string, at::Tensor>& buffers) {
  require_same_on_all_ranks(control_, "the weights", given_text);
  std::map<std::string, at::Tensor> values;  // by the names of the state
  for (const ParameterInfo& parameter : parameters_of(spec_)) {
    if (parameter.alias) continue;
    values[parameter.block + "." + parameter.name] =
        given.read(spec_.stored_name(parameter.block, parameter.name), parameter.shape);
  }
  strategy_->visit_buffers([&](const VisitedParameter& buffer) {
    const auto found = buffers.find(spec_.stored_name(buffer.block, buffer.name));
    if (found == buffers.end()) return;
    check(found->second.sizes() == buffer.value.sizes(), ErrorCode::kInvalidArgument, "buffer \"",
          found->first, "\" has shape ", found->second.sizes(), ", the model asks for ",
          buffer.value.sizes());
    values[buffer.block + "." + buffer.name] = found->second;
  });
  for (const StateTensor& piece : strategy_->state()) {
    if (piece.kind != "parameter" && piece.kind != "buffer") continue;
    const auto value = values.find(piece.name);
    if (value == values.end()) continue;
    const at::Tensor part = piece.get();
    write_slice(piece.slice, value->second.to(part.device(), part.scalar_type()).contiguous(),
                part);
    piece.set(part);
  }
  strategy_->state_restored();
  clipped_.reset();
  has_gradient_ = false;
}

}  // namespace tessera::python
