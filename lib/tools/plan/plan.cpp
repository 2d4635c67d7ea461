// SPDX-License-Identifier: MIT
#include "lib/tools/plan/plan.h"

#include <algorithm>

#include "lib/run/layout.h"
#include "lib/run/recomputation.h"
#include "lib/settings/memory_size.h"
#include "tessera/backends/pipeline/schedule.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

// The tensor axis is innermost, then data, then pipeline.
bool spans_hosts(const Traffic& traffic, const MeshExtents& mesh, int64_t ranks_of_host) {
  int64_t reach = traffic.ranks;
  if (traffic.axis != Axis::kTensor) reach *= mesh.tensor;
  if (traffic.axis == Axis::kPipeline) reach = int64_t{mesh.pipeline} * mesh.data * mesh.tensor;
  return reach > ranks_of_host;
}

double peak_of(const Card& card, const TrainOptions& o) {
  if (o.parallel.precision.parameter != at::kFloat) return card.half_flops;
  return o.precision.tf32 ? card.tf32_flops : card.fp32_flops;
}

// What else no run would take.
void check_positions(const Prepared& model, const TrainOptions& o) {
  const int64_t positions = model.config().max_positions;
  check(positions == 0 || o.data.packing || o.data.max_seq_length <= positions,
        ErrorCode::kInvalidArgument, "--max_seq_length ", o.data.max_seq_length, ": model ",
        model.config().name, " has ", positions, " positions");
}

double tokens_of_micro_batch(const TrainOptions& o) {
  return static_cast<double>(o.training.per_device_train_batch_size) *
         static_cast<double>(o.data.max_seq_length);
}

// Of a product's tokens: few of them do not fill a GPU, and weights and their gradients pass
// through memory once a micro-batch, however few its tokens are.
double filling(const Card& card, double tokens) {
  const double half = card.device.empty() ? 32 : 256;
  return tokens / (tokens + half);
}

// [Note: predicted time] What a rank computes at a share of its peak that grows with the
// micro-batch; what it sends beside the backward pass (two thirds of it) costs a twentieth there,
// sums of activations stand in the way, and on a CPU all of it does, where the same cores copy; the
// optimizer moves its state through memory once.
StepTime time_of(const Prepared& model, const RunPlan& run, const Place& place,
                 const MemoryPlan& memory) {
  const TrainOptions& o = run.options;
  const Card& card = place.card;
  const double tokens =
      tokens_of_micro_batch(o) * static_cast<double>(o.training.gradient_accumulation_steps);
  const double flops = model.model.flops_per_token(o.data.max_seq_length) * tokens *
                       (1 + run.more_operations) / (run.mesh.pipeline * run.mesh.tensor);
  StepTime time{.compute = flops / (peak_of(card, o) * place.efficiency *
                                    filling(card, tokens_of_micro_batch(o) / run.mesh.tensor))};
  const double idle =
      bubble_share(run.mesh.pipeline, static_cast<int>(o.training.gradient_accumulation_steps),
                   static_cast<int>(o.parallel.pipeline.chunks));
  time.bubble = time.compute * idle / (1 - idle);
  const bool overlaps = o.parallel.overlap && !card.device.empty();
  double beside = 0;
  for (const Message& message : run.messages) {
    const bool hidden = overlaps && message.traffic.axis != Axis::kTensor;
    (hidden ? beside : time.exposed) += message.seconds();
  }
  time.exposed += std::max(beside / 20, beside - time.compute * 2 / 3);
  const LayoutCost& state = memory.state;
  if (o.parallel.offload.what == Offload::kNone) {
    time.optimizer = (2 * state.optimizer_bytes + state.gradient_bytes + state.parameter_bytes) /
                     card.memory_bytes_per_s;
  } else {
    // Masters and moments in and, at the same time, out.
    time.offload = state.host_bytes / card.host_bytes_per_s;
  }
  return time;
}

}  // namespace

const MemoryPlan& RunPlan::largest(const Card& card) const {
  return *std::ranges::max_element(stages, {},
                                   [&](const MemoryPlan& stage) { return stage.needed(card); });
}

Prepared prepare_shapes(const TrainOptions& options, Program program) {
  Prepared run;
  run.options = options;
  run.program = program;
  run.task = task_of(program);
  check(options.model.directory.empty() != options.model.config.empty(),
        ErrorCode::kInvalidArgument, "give --model DIR or --model_config NAME, one of the two");
  const std::string& base =
      options.model.directory.empty() ? options.model.config : options.model.directory;
  take_from_hub_cache(run);
  // Models for trials take the tokenizer's vocabulary.
  if (!options.model.tokenizer.empty())
    run.tokenizer = Tokenizer::load(run.options.model.tokenizer);
  read_model_config(run);
  const int64_t labels = std::max<int64_t>(2, options.data.num_labels);
  make_model(run, labels, base);
  return run;
}

RunPlan plan_run(const Prepared& model, const TrainOptions& o, const Place& place) {
  validate_layout(o);
  check_positions(model, o);
  RunPlan run{.options = o, .mesh = mesh_extents(o, static_cast<int>(place.ranks))};
  const int64_t needed = o.axes.pipeline * o.axes.tensor * run.mesh.data;
  check(needed == place.ranks, ErrorCode::kInvalidArgument, "--pipeline_parallel ", o.axes.pipeline,
        " times --tensor_parallel ", o.axes.tensor, " does not divide ", place.ranks, " ranks");
  run.global_batch = o.global_batch_size(run.mesh.data);
  LayoutPlan plan = layout_plan(model, o, static_cast<int>(place.ranks));
  plan.on_gpu = !place.card.device.empty();
  plan.tokens = tokens_of_micro_batch(o);
  plan.activation_elements = plan.tokens * static_cast<double>(model.config().hidden);
  const BatchShape batch = batch_shape(model, o, o.data.max_seq_length);
  if (const auto asked = parse_activation_memory(o.memory.activations)) {
    run.recomputation = choose_recomputation(
        plan, batch, place.card,
        {.bytes = asked->bytes, .memory = asked->automatic ? place.card.memory_bytes : 0});
    plan.parallel.recomputed_blocks = blocks_of(run.recomputation);
  }
  run.more_operations = more_operations(recomputed_share(plan), o.trains_adapters());
  run.stages = memory_plan(plan, batch, place.card, between_steps(model, o, o.data.max_seq_length));
  run.saves = o.output.save_strategy != SaveStrategy::kNo && o.output.save_async;
  for (const Traffic& traffic : run.stages.front().state.traffic) {
    const bool between = spans_hosts(traffic, run.mesh, place.ranks_of_host);
    run.messages.push_back(
        {traffic, between, between ? place.card.network_bytes_per_s : place.card.link_bytes_per_s});
  }
  run.time = time_of(model, run, place, run.largest(place.card));
  run.tokens_per_s =
      static_cast<double>(run.global_batch * o.data.max_seq_length) / run.time.total();
  return run;
}

}  // namespace tessera::programs
