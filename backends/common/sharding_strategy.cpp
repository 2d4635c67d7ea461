// SPDX-License-Identifier: MIT
#include "tessera/backends/sharding_strategy.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "backends/common/agreement.h"
#include "backends/common/allocator_reserve.h"
#include "backends/common/attached_model.h"
#include "backends/common/block_runner.h"
#include "backends/common/forward_passes.h"
#include "backends/common/gradient_scale.h"
#include "backends/common/matrix_units.h"
#include "backends/common/parameter_visits.h"
#include "backends/common/process_groups.h"
#include "backends/common/recomputation.h"
#include "backends/common/replicated_gradient_reducer.h"
#include "backends/common/state_blocks.h"
#include "backends/common/step_agreement.h"
#include "backends/common/step_graph_runner.h"
#include "backends/common/step_state.h"
#include "backends/common/strategy_state.h"
#include "lib/comm/operation_scope.h"
#include "lib/core/meta.h"
#include "lib/core/trace.h"
#include "lib/optim/matrix_updates.h"
#include "lib/sharding/messages.h"
#include "tessera/core/error.h"
#include "tessera/core/phase_clock.h"

namespace tessera {

namespace {

int64_t bucket_bytes_of(const ParallelConfig& config, const ShardingRules& rules) {
  const auto element = static_cast<int64_t>(c10::elementSize(config.precision.gradient_dtype()));
  return bucket_bytes(config.bucket_bytes, rules, element);
}

std::unique_ptr<GradientReducer> make_wire(const AttachedModel& model, const ParallelConfig& config,
                                           const ShardingRules& rules, at::Device device) {
  int64_t largest = 0;
  for (const ParameterUnit& unit : model.units) {
    if (!unit.frozen) largest = std::max(largest, unit.layout.numel());
  }
  return std::make_unique<GradientReducer>(device, config.precision.gradient_dtype(),
                                           config.precision.reduce_dtype(),
                                           bucket_bytes_of(config, rules), largest);
}

// Null: no weights are stored, or gathered, as codes.
std::shared_ptr<const ops::Fp8Codes> codes_of(const std::vector<ParameterUnit>& units,
                                              const ParameterStore& parameters) {
  const auto codes = std::make_shared<ops::Fp8Codes>();
  for (size_t unit = 0; unit < units.size(); ++unit) {
    if (!units[unit].coded() && !units[unit].gathers_codes()) continue;
    for (size_t e = 0; e < units[unit].handles.size(); ++e) {
      const at::Tensor scale = parameters.scale(unit, e).view({1, 1});
      (*codes)[units[unit].handles[e].front().unsafeGetTensorImpl()] = {parameters.codes(unit, e),
                                                                        scale};
    }
  }
  return codes->empty() ? nullptr : codes;
}

// placement: where masters and moments live; null: DeviceOptimizer.
std::unique_ptr<UnitOptimizer> make_optimizer(const UnitOptimizerContext& context,
                                              const UnitOptimizerFactory& placement,
                                              const ProcessGroups& ranks,
                                              const ParallelConfig& config,
                                              const OptimizerFactory& optimizer) {
  const UnitOptimizerFactory on_device = [](const UnitOptimizerContext& of) {
    return std::make_unique<DeviceOptimizer>(of);
  };
  const UnitOptimizerFactory& made = placement ? placement : on_device;
  const WholeMatrices* matrices = whole_matrices(optimizer);
  if (matrices == nullptr) return made(context);
  return std::make_unique<MatrixUnits>(MatrixUnits::Parts{context, ranks, config, made, *matrices});
}

}  // namespace

ShardingStrategy::ShardingStrategy(const ParallelConfig& config, const ShardingSetup& setup,
                                   const ShardingRules& rules)
    : config_(config),
      rules_(rules),
      placement_(setup.placement),
      transform_(setup.transform),
      ranks_(std::make_unique<const ProcessGroups>(setup, rules.shards)),
      step_(std::make_unique<StepState>()) {}

ShardingStrategy::~ShardingStrategy() = default;

void ShardingStrategy::attach(const ModelSpec& given, const BuildContext& context,
                              const OptimizerFactory& optimizer) {
  check(model_ == nullptr, ErrorCode::kInternal, name(), ": attach() was called twice");
  const InPhase phase("attach");
  ModelSpec spec = with_marked_matrices(transform_ ? transform_(given) : given, optimizer);
  const at::Device device = data().device();
  check_model(spec, config_.precision);
  mark_recomputed(config_, spec);
  check(context.device.type() == device.type(), ErrorCode::kInvalidArgument, name(),
        ": the model's device is ", context.device, " but the ", data().transport(),
        " communicator works on ", device);
  check(ranks_->expert() == nullptr || whole_matrices(optimizer) == nullptr,
        ErrorCode::kInvalidArgument, name(),
        ": an optimizer of whole matrices, such as Muon, is not built for an expert axis; take "
        "another (--optim adamw_torch), or leave the expert axis at 1 (--expert_parallel 1)");
  at::NoGradGuard no_grad;
  require_same_blocks(spec, data());
  require_same_optimizer(describe(optimizer), *ranks_->everyone);
  auto making = std::make_unique<AttachedModel>();
  AttachedModel& model = *making;  // stores refer to its units from here on
  model_ = std::move(making);
  agreement_ = std::make_unique<StepAgreement>(name(), *ranks_, *step_);
  room_ = std::make_unique<AllocatorReserve>(device, /*alone=*/ranks_->sharers == 1);
  steps_begun_ = at::zeros({}, at::kLong);
  learning_rate_ = at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(device));
  parameters_ = make_parameters();
  const StateNeeds needs = state_needs(optimizer);
  const bool splits_masters = needs.splits_masters && config_.precision.parameter == at::kBFloat16;
  const UnitOptimizerContext optimizer_context{units(),
                                               shards().rank(),
                                               config_.precision.parameter,
                                               device,
                                               expected_numel(spec) / shards().size(),
                                               needs.bytes,
                                               splits_masters,
                                               needs.small_bytes};
  optimizer_ = make_optimizer(optimizer_context, placement_, *ranks_, config_, optimizer);
  state_ = std::make_unique<StrategyState>(StrategyState::Parts{.model = model,
                                                                .ranks = *ranks_,
                                                                .parameters = *parameters_,
                                                                .optimizer = *optimizer_,
                                                                .steps_begun = steps_begun_,
                                                                .splits_masters = splits_masters});
  ShardingRules rules = rules_;
  rules.state = needs.rules;
  build_model(
      spec, context, rules, config_.precision.frozen, *ranks_,
      [&](size_t unit, const at::Tensor& full) {
        if (state_->settles(unit)) settle(full);
        optimizer_->adopt(unit, full);
        parameters_->adopt(unit, full);
      },
      model);
  require_blocks(units(), rules.state, *ranks_);
  if (ranks_->context() != nullptr) model.require_cut_rows(ranks_->context()->size(), name());
  if (config_.precision.fp8 != Fp8::kOff) model.require_fp8(name());
  if (config_.precision.frozen == FrozenDtype::kFp8) model.require_codes(name());
  parameters_->finalize();
  step_->codes = codes_of(units(), *parameters_);
  wire_ = make_wire(model, config_, rules_, device);
  gradients_ = make_gradients();
  optimizer_->prepare(*parameters_, *gradients_, optimizer);
  replicated_reducer_ = std::make_unique<ReplicatedGradientReducer>(
      ReplicatedGradientReducer::Parts{.model = model,
                                       .ranks = *ranks_,
                                       .wire = *wire_,
                                       .gradients = *gradients_,
                                       .optimizer = *optimizer_,
                                       .sharded = rules_.shards > 1,
                                       .overlap = config_.overlap,
                                       .reduce = config_.precision.reduce_dtype()});
  if (placement_ || ranks_->replicas != nullptr) {
    gradients_->on_reduced([this](size_t unit) { replicated_reducer_->reduced(unit); });
  }
  make_runners();
}

void ShardingStrategy::make_runners() {
  const AttachedModel& model = *model_;
  scale_ = std::make_unique<GradientScale>(GradientScale::Parts{.model = model,
                                                                .gradients = *gradients_,
                                                                .optimizer = *optimizer_,
                                                                .replicated = *replicated_reducer_,
                                                                .agreement = *agreement_,
                                                                .step = *step_,
                                                                .loss_scale = loss_scale_});
  visits_ = std::make_unique<ParameterVisits>(ParameterVisits::Parts{.model = model,
                                                                     .ranks = *ranks_,
                                                                     .parameters = *parameters_,
                                                                     .gradients = *gradients_,
                                                                     .optimizer = *optimizer_,
                                                                     .scale = *scale_});
  if (config_.offload.activations) {
    activations_ = std::make_unique<ActivationOffload>(data().device(), config_.offload.pin_memory);
  }
  blocks_ = std::make_unique<BlockRunner>(
      BlockRunner::Parts{.strategy = name(),
                         .model = model,
                         .config = config_,
                         .parameters = *parameters_,
                         .gradients = *gradients_,
                         .optimizer = *optimizer_,
                         .step = *step_,
                         .loss_gradient = [this] { return scale_->loss_gradient(); },
                         .offload = activations_.get()});
  passes_ =
      std::make_unique<ForwardPasses>(ForwardPasses::Parts{.strategy = name(),
                                                           .model = model,
                                                           .config = config_,
                                                           .ranks = *ranks_,
                                                           .step = *step_,
                                                           .agreement = *agreement_,
                                                           .reserve = *room_,
                                                           .gradients = *gradients_,
                                                           .replicated = *replicated_reducer_,
                                                           .blocks = *blocks_,
                                                           .scale = *scale_,
                                                           .weights_version = weights_version_,
                                                           .steps_begun = steps_begun_,
                                                           .enter = [this] { enter(); }});
  const StepGraphRunner::Parts recorded{
      .model = model,
      .ranks = *ranks_,
      .parameters = *parameters_,
      .gradients = *gradients_,
      .optimizer = *optimizer_,
      .step = *step_,
      .blocks = *blocks_,
      .scale = *scale_,
      .make_run = [this] { return make_run(0, 0, block_count()); }};
  const bool offloads = placement_ != nullptr || activations_ != nullptr;
  if (!offloads && StepGraphRunner::can_record(recorded)) {
    graphs_ = std::make_unique<StepGraphRunner>(recorded);
  }
}

Communicator& ShardingStrategy::data() const { return ranks_->data; }
Communicator& ShardingStrategy::shards() const { return *ranks_->shards; }
void ShardingStrategy::require_connected() const {
  if (agreement_) agreement_->require_connected();
}

int ShardingStrategy::sharers() const { return ranks_->sharers; }
int64_t ShardingStrategy::extra_bytes_sent() const { return ranks_->extra_bytes_sent(); }
size_t ShardingStrategy::block_count() const { return model_->blocks.size(); }
int64_t ShardingStrategy::parameter_count() const { return model_->parameter_count; }
const std::vector<ParameterUnit>& ShardingStrategy::units() const { return model_->units; }

StoreOptions ShardingStrategy::store_options(at::ScalarType dtype) const {
  return {.dtype = dtype,
          .wire = wire_.get(),
          .overlap = config_.overlap,
          .bucket_bytes = bucket_bytes_of(config_, rules_),
          .prefetch_blocks = config_.overlap ? config_.prefetch_blocks : 0,
          .keep_gathered = rules_.keeps_gathered,
          .host_shards = config_.offload.what == Offload::kOptimizerAndParameters,
          .pin_memory = config_.offload.pin_memory};
}

std::unique_ptr<ParameterStore> ShardingStrategy::make_parameters() {
  const StoreOptions options = store_options(config_.precision.parameter);
  if (rules_.gathers_parameters) {
    return std::make_unique<GatheredParameters>(units(), shards(), options);
  }
  return std::make_unique<ResidentParameters>(units(), shards(), options);
}

std::unique_ptr<GradientStore> ShardingStrategy::make_gradients() {
  StoreOptions options = store_options(config_.precision.gradient_dtype());
  // The rows of its second part are gradients of activations.
  if (config_.precision.gradient_dtype() == config_.precision.parameter &&
      config_.precision.reduce_dtype() == config_.precision.parameter) {
    options.most_rows = [this] {
      agreement_->check_agreement();
      return agreement_->most_rows();
    };
  }
  if (rules_.shards_gradients) {
    return std::make_unique<ShardedGradients>(units(), shards(), options);
  }
  return std::make_unique<FullGradients>(units(), shards(), options);
}

void ShardingStrategy::enter() {
  check(gradients_ != nullptr, ErrorCode::kInternal, name(), ": attach() was not called");
  if (agreement_->enter()) drop_call();
}

void ShardingStrategy::give_up(const std::string& why) { agreement_->give_up(why); }

void ShardingStrategy::end_of_data(Pass pass, int64_t done) {
  enter();
  step_->micro_batches.clear();
  step_->with_gradients = pass == Pass::kTraining;
  step_->with_scores = step_->accumulates = step_->is_pass = false;
  agreement_->tell_end_of_data(done);
}

StepResult ShardingStrategy::forward_backward(std::span<const MicroBatch> micro_batches,
                                              const BackwardOptions& options) {
  const TraceRange range("forward_backward");
  begin(micro_batches, /*with_gradients=*/true, options);
  for (size_t m = 0; m < micro_batches.size(); ++m) {
    MicroBatchRun run = make_run(m, 0, block_count());
    if (graphs_ != nullptr) {
      graphs_->run(std::move(run));
      continue;
    }
    run.backward_follows = true;
    forward(run);
    backward(run);
  }
  return finish();
}

StepResult ShardingStrategy::evaluate(std::span<const MicroBatch> micro_batches) {
  const TraceRange range("evaluate");
  begin(micro_batches, /*with_gradients=*/false);
  for (size_t m = 0; m < micro_batches.size(); ++m) {
    MicroBatchRun run = make_run(m, 0, block_count());
    forward(run);
  }
  return finish();
}

at::Tensor ShardingStrategy::grad_norm_squared() {
  require_gradient("grad_norm_squared()");
  const TraceRange range("grad_norm");
  const PhaseScope phase(Phase::kOptimizer);
  const InPhase named("step");
  const ForTensor of("norm of the gradient");
  const at::NoGradGuard no_grad;
  at::Tensor sum = replicated_reducer_->norm_squared();
  const at::Tensor& scale = scale_->factor();
  if (scale.defined()) sum = sum * scale * scale;
  return sum.squeeze(0);
}

void ShardingStrategy::scale_gradients(const at::Tensor& factor) {
  require_gradient("scale_gradients()");
  scale_->multiply(factor);
}

void ShardingStrategy::optimizer_step(double learning_rate, const at::Tensor& skip) {
  check(std::isfinite(learning_rate) && learning_rate >= 0, ErrorCode::kInvalidArgument, name(),
        ": optimizer_step() was given a learning rate of ", learning_rate,
        "; it must be 0 or a positive number. Look at the schedule it comes from");
  require_gradient("optimizer_step()");
  const TraceRange range("optimizer_step");
  const PhaseScope phase(Phase::kOptimizer);
  const InPhase named("step");
  at::NoGradGuard no_grad;
  agreement_->begin(StepOrder::Call::kUpdate);
  agreement_->hand_over(learning_rate, scale_->take_handed_factor(), skip, loss_scale_);
  learning_rate_.fill_(learning_rate);
  optimizer_->step({learning_rate_, scale_->factor(), skip});
  scale_->updated();
  ++weights_version_;
  agreement_->end();
}

at::Tensor ShardingStrategy::forward(const MicroBatch& micro_batch, const ForwardOptions& options) {
  check(passes_ != nullptr, ErrorCode::kInternal, name(), ": attach() was not called");
  return passes_->forward(micro_batch, options);
}

StrategyMemory ShardingStrategy::memory() const {
  StrategyMemory memory;
  memory.parameter_bytes = parameters_->persistent_bytes();
  memory.gradient_bytes = gradients_->persistent_bytes();
  memory.buffer_bytes = parameters_->buffer_bytes() + gradients_->buffer_bytes() + wire_->bytes();
  memory.buffer_bytes += replicated_reducer_->bytes();
  memory.host_bytes = parameters_->host_bytes();
  if (config_.offload.pin_memory && is_gpu(data().device())) {
    memory.pinned_bytes = memory.host_bytes;
  }
  optimizer_->add_memory(memory);
  if (activations_ != nullptr) activations_->add_memory(memory);
  return memory;
}

OffloadReport ShardingStrategy::offload_report() {
  OffloadReport report = optimizer_->report();
  if (activations_ != nullptr) activations_->add_traffic(report);
  return report;
}

}  // namespace tessera
