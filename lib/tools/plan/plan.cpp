// SPDX-License-Identifier: MIT
#include "lib/tools/plan/plan.h"

#include <algorithm>
#include <utility>

#include "lib/plan/memory_plan.h"
#include "lib/run/layout.h"
#include "lib/run/recomputation.h"
#include "lib/settings/memory_size.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

// The tensor axis is innermost, then context, data, pipeline.
bool spans_hosts(const Traffic& traffic, const MeshExtents& mesh, int64_t ranks_of_host) {
  int64_t reach = traffic.ranks;
  if (traffic.axis != Axis::kTensor) reach *= mesh.tensor;
  if (traffic.axis == Axis::kPipeline) reach = mesh.ranks();
  // Owners of the same experts lie apart.
  if (traffic.axis == Axis::kData && traffic.ranks < mesh.data) reach *= mesh.expert;
  return reach > ranks_of_host;
}

// Rings of a collective cross hosts once for every rank on a host, each over its own network card.
double bandwidth(const Traffic& traffic, const MeshExtents& mesh, const PlannedHosts& hosts,
                 bool between_hosts) {
  const Card& card = hosts.card;
  if (!between_hosts) return card.link_bytes_per_s;
  if (traffic.axis == Axis::kPipeline) return card.network_bytes_per_s;
  const int64_t apart = traffic.axis == Axis::kTensor ? 1 : mesh.tensor;
  const int64_t beside = std::clamp<int64_t>(hosts.ranks_of_host / apart, 1, traffic.ranks);
  return std::min(card.link_bytes_per_s, card.network_bytes_per_s * static_cast<double>(beside));
}

// Further checks that every run makes.
void check_positions(const Prepared& model, const TrainOptions& o) {
  const int64_t positions = model.config().max_positions;
  check(positions == 0 || o.data.packing || o.data.max_seq_length <= positions,
        ErrorCode::kInvalidArgument, "--max_seq_length ", o.data.max_seq_length, ": model ",
        model.config().name, " has ", positions, " positions");
}

}  // namespace

void require_axes_divide(const TrainOptions& o, const MeshExtents& mesh, int64_t ranks) {
  check(mesh.ranks() == ranks, ErrorCode::kInvalidArgument, "--pipeline_parallel ", o.axes.pipeline,
        o.axes.context == 1 ? "" : concat(" times --context_parallel ", o.axes.context),
        " times --tensor_parallel ", o.axes.tensor, " does not divide ", ranks, " ranks");
}

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
  // Trial models take the tokenizer's vocabulary.
  if (!options.model.tokenizer.empty())
    run.tokenizer = Tokenizer::load(run.options.model.tokenizer);
  read_model_config(run);
  const int64_t labels = std::max<int64_t>(2, options.data.num_labels);
  make_model(run, labels, base);
  return run;
}

RunPlan plan_run(const Prepared& model, const TrainOptions& o, const PlannedHosts& hosts,
                 std::shared_ptr<EqualPasses> passes, int stages) {
  validate_layout(o);
  check_positions(model, o);
  RunPlan run{.options = o, .mesh = mesh_extents(o, static_cast<int>(hosts.ranks))};
  require_axes_divide(o, run.mesh, hosts.ranks);
  run.global_batch = o.global_batch_size(run.mesh.data);
  PlannedLayout layout = planned_layout(model, o, static_cast<int>(hosts.ranks));
  layout.passes = std::move(passes);
  layout = with_passes(std::move(layout));
  layout.on_gpu = !hosts.card.device.empty();
  const BatchShape batch = batch_shape(model, o, o.data.max_seq_length);
  if (const auto asked = parse_activation_memory(o.memory.activations)) {
    run.recomputation = choose_recomputation(
        layout, batch, hosts.card,
        {.bytes = asked->bytes, .memory = asked->automatic ? hosts.card.memory_bytes : 0});
    layout.parallel.recomputed_blocks = blocks_of(run.recomputation);
  }
  const auto kept = parse_offload_gpu_memory(o.memory.offload_gpu);
  if (kept && kept->automatic && layout.on_gpu &&
      layout.parallel.offload.what == Offload::kOptimizer) {
    layout.parallel.offload.device_bytes =
        room_for_state(layout, batch, hosts.card, hosts.card.memory_bytes,
                       between_steps(model, o, o.data.max_seq_length));
  }
  run.more_operations = more_operations(recomputed_share(layout), o.trains_adapters());
  run.stages = memory_plan(layout, batch, hosts.card,
                           between_steps(model, o, o.data.max_seq_length), stages);
  run.saves = o.output.save_strategy != SaveStrategy::kNo && o.output.save_async;
  for (const Traffic& traffic : run.stages.front().state.traffic) {
    const bool between = spans_hosts(traffic, run.mesh, hosts.ranks_of_host);
    run.messages.push_back({traffic, between, bandwidth(traffic, run.mesh, hosts, between)});
  }
  run.time = step_time(model, run, hosts, layout.parallel, run.largest(hosts.card));
  run.tokens_per_s = static_cast<double>(run.global_batch) *
                     static_cast<double>(o.data.max_seq_length) / run.time.total();
  return run;
}

}  // namespace tessera::programs
