#include "examples/common/theory.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <set>

#include "tessera/backends/pipeline/partition.h"
#include "tessera/backends/pipeline/schedule.h"

namespace tessera::programs {
namespace {

// Parameters that are gathered and reduced together.
struct Unit {
  double large = 0, small = 0;  // elements of tensors at or above the persistence threshold, below
  bool tied_here = false;       // two blocks of this stage share it
  bool tied_away = false;       // a block of another stage holds a copy
  double numel() const { return large + small; }
};

// One stage's part of the model, and the order in which a step comes by its blocks.
struct Stage {
  std::vector<Unit> units;
  std::vector<std::vector<size_t>> units_of_block;
  std::vector<size_t> visits;  // units in the order in which they are needed
  int64_t messages = 0;        // activations and their gradients handed on
  double whole = 0;            // elements that every tensor rank holds
  int64_t forwards_of_layers = 0, forwards_of_embedding = 0, forwards_of_head = 0;
  int64_t broadcasts = 0;  // activations and gradients that one stage gives to all

  double sum(double Unit::*part) const {
    double total = 0;
    for (const Unit& unit : units) total += unit.*part;
    return total;
  }
  double numel() const { return sum(&Unit::large) + sum(&Unit::small); }
};

double bytes_of(at::ScalarType dtype) { return static_cast<double>(at::elementSize(dtype)); }
double ring(int ranks) { return (ranks - 1.0) / ranks; }

struct Dtypes {
  double parameter, gradient, reduce;
  explicit Dtypes(const PrecisionConfig& p)
      : parameter(bytes_of(p.parameter)),
        gradient(bytes_of(p.gradient.value_or(p.parameter))),
        reduce(bytes_of(p.reduce.value_or(p.gradient.value_or(p.parameter)))) {}
};

// Ranks that share embedding and head.
int end_ranks(const TheoryInput& input) {
  return input.parallel.pipeline.shared_vocabulary ? input.mesh.pipeline : input.mesh.tensor;
}

int shard_ranks(const TheoryInput& input) {
  const int chosen = input.parallel.shard_ranks;
  return input.parallel.strategy == "fsdp" && chosen > 0 ? chosen : input.mesh.data;
}

bool gathers(const TheoryInput& input) {
  const std::string& name = input.parallel.strategy;
  const bool to_host = input.parallel.offload.what == Offload::kOptimizerAndParameters;
  return name == "zero3" || (name == "fsdp" && (shard_ranks(input) > 1 || to_host));
}

bool shards_gradients(const TheoryInput& input) {
  const bool boundary = input.parallel.reduce_at_boundary;
  const std::string& name = input.parallel.strategy;
  return name == "zero3" || (name == "zero2" && !boundary) ||
         (name == "fsdp" && shard_ranks(input) > 1 && !boundary);
}

// Units as docs/strategies.md has them: tied parameters alone, other parameters of a block
// together, consecutive small blocks too where fsdp is told so.
void make_units(const TheoryInput& input, const std::vector<size_t>& blocks, Stage& stage) {
  const auto shapes = model_shapes(input.model, input.mesh.tensor, end_ranks(input));
  const bool zero3 = input.parallel.strategy == "zero3";
  const auto threshold = zero3 ? input.parallel.persistence_threshold : 0;
  std::set<std::string> here, elsewhere;
  for (size_t block = 0; block < shapes.size(); ++block) {
    const bool mine = std::ranges::find(blocks, block) != blocks.end();
    for (const ParameterShape& p : shapes[block]) {
      if (p.tied) (mine ? here : elsewhere).insert(p.owner);
    }
  }
  const bool shared = input.parallel.pipeline.shared_vocabulary;
  std::map<std::string, size_t> tied_units;
  Unit open;
  std::vector<size_t> users;
  auto close = [&] {
    if (open.numel() == 0) return;
    for (size_t user : users) stage.units_of_block[user].push_back(stage.units.size());
    stage.units.push_back(std::exchange(open, {}));
    users.clear();
  };
  stage.units_of_block.resize(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (const ParameterShape& p : shapes[blocks[i]]) {
      const auto numel = static_cast<double>(p.numel);
      if (p.whole) stage.whole += numel;
      double Unit::*part = p.numel < threshold ? &Unit::small : &Unit::large;
      if (!p.tied) {
        open.*part += numel;
        if (users.empty() || users.back() != i) users.push_back(i);
        continue;
      }
      const auto [known, fresh] = tied_units.emplace(p.owner, stage.units.size());
      if (fresh) {
        Unit& unit = stage.units.emplace_back();
        unit.*part = numel;
        unit.tied_away = elsewhere.contains(p.owner);
      } else {
        stage.units[known->second].tied_here = true;
      }
      stage.units_of_block[i].push_back(known->second);
    }
    const auto wanted = static_cast<double>(input.parallel.unit_numel);
    const bool ends_part = shared && (i == 0 || i + 2 == blocks.size());
    if (open.numel() >= wanted || ends_part || i + 1 == blocks.size()) close();
  }
}

// Forward and backward of every micro-batch in the schedule's order.
void play(const TheoryInput& input, int index, const std::vector<ModelPart>& parts,
          const std::vector<size_t>& blocks, Stage& stage) {
  const PipelineConfig& pipeline = input.parallel.pipeline;
  const auto micro_batches = static_cast<int>(input.accumulation);
  PipelineSchedule schedule =
      input.mesh.pipeline > 1 ? make_schedule(pipeline.schedule, input.mesh.pipeline, micro_batches,
                                              pipeline.chunks, pipeline.shared_vocabulary)
                              : one_f_one_b(1, micro_batches);
  const size_t last = input.model.block_count() - 1;
  auto visit = [&](size_t block) {
    const auto place = static_cast<size_t>(std::ranges::find(blocks, block) - blocks.begin());
    for (size_t unit : stage.units_of_block[place]) stage.visits.push_back(unit);
  };
  for (const PipelineAction& action : schedule.stages[static_cast<size_t>(index)]) {
    if (action.of_all_stages()) {
      const bool head = action.kind == PipelineAction::Kind::kHead;
      const bool back = action.kind == PipelineAction::Kind::kEmbedBackward;
      visit(head ? last : 0);
      stage.broadcasts += head || back ? 1 : 0;
      stage.forwards_of_head += head ? 1 : 0;
      const bool again = back && input.parallel.gradient_checkpointing;
      stage.forwards_of_embedding += (!head && !back) || again ? 1 : 0;
      continue;
    }
    const ModelPart& part = parts[static_cast<size_t>(schedule.part(index, action))];
    const bool forward = action.kind == PipelineAction::Kind::kForward;
    stage.messages += output_of(schedule, index, action).has_value() ? 1 : 0;
    for (size_t i = 0; i < part.count; ++i) {
      const size_t block = forward ? part.first + i : part.first + part.count - 1 - i;
      if (!forward && block == last) continue;  // the loss runs both ways at once
      visit(block);
      const bool again = !forward && input.parallel.gradient_checkpointing;
      if (!forward && !again) continue;
      ++(block == 0      ? stage.forwards_of_embedding
         : block == last ? stage.forwards_of_head
                         : stage.forwards_of_layers);
    }
  }
}

Stage make_stage(const TheoryInput& input, int index) {
  std::vector<ModelPart> parts{{0, input.model.block_count(), 0}};
  if (input.mesh.pipeline > 1) {
    parts = partition(input.model, input.parallel.pipeline, input.mesh.pipeline,
                      input.parallel.gradient_checkpointing);
  }
  const bool shared = input.parallel.pipeline.shared_vocabulary;
  std::vector<size_t> blocks;
  if (shared) blocks.push_back(0);
  for (size_t p = 0; p < parts.size(); ++p) {
    if (p % static_cast<size_t>(input.mesh.pipeline) != static_cast<size_t>(index)) continue;
    for (size_t i = 0; i < parts[p].count; ++i) blocks.push_back(parts[p].first + i);
  }
  if (shared) blocks.push_back(input.model.block_count() - 1);
  Stage stage;
  make_units(input, blocks, stage);
  play(input, index, parts, blocks, stage);
  return stage;
}

// Fixed buffers: units of one size take turns in `depth` of them; tied units have their own.
struct Slots {
  std::vector<size_t> slot_of;
  double elements = 0;
  Slots(const std::vector<Unit>& units, double (*size)(const Unit&), int depth, bool all_alone) {
    std::map<double, std::vector<size_t>> classes;
    std::map<double, size_t> users;
    size_t count = 0;
    for (const Unit& unit : units) {
      const double numel = size(unit);
      auto& slots = classes[numel];
      const bool alone = unit.tied_here || all_alone;
      if (alone || slots.size() < static_cast<size_t>(depth)) {
        elements += numel;
        slot_of.push_back(count++);
        if (!alone) slots.push_back(slot_of.back());
        if (!alone) ++users[numel];
      } else {
        slot_of.push_back(slots[users[numel]++ % slots.size()]);
      }
    }
  }
};

// Elements gathered in a step: a unit is gathered when it is needed and another one has used its
// buffer since.
double gathered_elements(const Stage& stage, const Slots& slots) {
  std::map<size_t, size_t> holder;
  double elements = 0;
  for (size_t unit : stage.visits) {
    const auto [held, fresh] = holder.emplace(slots.slot_of[unit], unit);
    if (!fresh && held->second == unit) continue;
    held->second = unit;
    elements += stage.units[unit].large;
  }
  return elements;
}

// Masters, moments and staging in host memory, and the shards of parameters where asked. A step on
// the device needs no staging but three chunks of what streams through it, and keeps fp32
// parameters where they are.
void move_to_host(const TheoryInput& input, const Stage& stage, int shards, Theory& theory) {
  const OffloadConfig& offload = input.parallel.offload;
  if (offload.what == Offload::kNone) return;
  const Dtypes d(input.parallel.precision);
  const bool is_16_bit = d.parameter < 4, parameters_too = offload.what != Offload::kOptimizer;
  const bool streams =
      offload.step == OffloadStep::kDevice || (offload.step == OffloadStep::kAuto && input.on_gpu);
  theory.optimizer_bytes = 0;
  if (parameters_too) theory.parameter_bytes = d.parameter * stage.sum(&Unit::small);
  double largest = 0;
  for (const Unit& unit : stage.units) {
    const bool targets_on_host = parameters_too && unit.small == 0;
    const bool master = is_16_bit || (!streams && !targets_on_host);
    double element = 4.0 * (input.moments + (master ? 1 : 0));
    if (!streams) {
      element += d.gradient;
      if (is_16_bit && !targets_on_host && d.gradient > 2) element += d.parameter;
    }
    theory.host_bytes += element * unit.numel() / shards;
    if (parameters_too) theory.host_bytes += d.parameter * unit.large / shards;
    largest = std::max(largest, unit.numel() / shards);
  }
  if (!streams) return;
  const double chunk = std::min(largest, static_cast<double>(offload.chunk_numel));
  const double slot = 4.0 * (input.moments + (is_16_bit || parameters_too ? 1 : 0)) +
                      (is_16_bit && parameters_too ? d.parameter : 0);
  theory.buffer_bytes += 3 * chunk * slot;
}

void add_traffic(const TheoryInput& input, const Stage& stage, double gathered, Theory& theory) {
  const Dtypes d(input.parallel.precision);
  const std::string& name = input.parallel.strategy;
  const double numel = stage.numel();
  const double reductions = shards_gradients(input) ? static_cast<double>(input.accumulation) : 1;
  const int shards = shard_ranks(input);
  double& sent = theory.comm_bytes_per_step;
  const bool everywhere = name == "single" || name == "ddp" || shards == 1;
  if (everywhere) {
    sent += 2 * d.reduce * numel * ring(input.mesh.data);
  } else {
    sent += reductions * d.reduce * numel * ring(shards);
    const double published = gathers(input) ? stage.sum(&Unit::small) : numel;
    sent += d.parameter * (published + gathered) * ring(shards);
    sent += 2 * d.reduce * numel / shards * ring(input.mesh.data / shards);  // over the replicas
  }
  for (const Unit& unit : stage.units) {  // two stages sum a tied gradient
    if (unit.tied_away) sent += d.gradient * unit.numel() / (everywhere ? 1 : shards);
  }
  const double element = d.parameter * input.activation_elements;
  const int tensor = input.mesh.tensor;
  const bool split = input.parallel.sequence_parallel;
  sent += static_cast<double>(stage.messages) * element / (split ? tensor : 1);
  // Two sums of activations a layer and direction, one for the embedding and the head's input; the
  // loss gathers two fp32 numbers a row. Stages that share the ends take the head's input from one
  // of them, and the gradient of the embedding's output.
  const auto layers = static_cast<double>(stage.forwards_of_layers);
  const auto embeddings = static_cast<double>(stage.forwards_of_embedding);
  const auto heads = static_cast<double>(stage.forwards_of_head);
  const double backward_layers = input.parallel.gradient_checkpointing ? layers / 2 : layers;
  const int ends = end_ranks(input);
  sent += 2 * ring(tensor) * (2 * layers + 2 * backward_layers) * element;
  sent +=
      2 * ring(ends) * (embeddings + heads) * element + heads * (ends - 1) * 2 * 4 * input.tokens;
  sent += static_cast<double>(stage.broadcasts) * element;
  if (split) {  // inputs of layers gathered again for their weights' gradients; norms' gradients
    sent += ring(tensor) * 2 * backward_layers * element;
    sent += 2 * ring(tensor) * static_cast<double>(input.accumulation) * d.gradient * stage.whole;
  }
}

}  // namespace

Theory theory_of(const TheoryInput& input, int index) {
  const Stage stage = make_stage(input, index);
  const Dtypes d(input.parallel.precision);
  const std::string& name = input.parallel.strategy;
  const int shards = shard_ranks(input);
  const double numel = stage.numel(), small = stage.sum(&Unit::small);
  const bool master = input.parallel.precision.parameter != at::kFloat;
  Theory theory;
  theory.parameter_bytes = d.parameter * numel;
  theory.gradient_bytes = d.gradient * numel;
  theory.optimizer_bytes = 4.0 * (input.moments + (master ? 1 : 0)) * numel;
  if (name != "single" && name != "ddp") theory.optimizer_bytes /= shards;
  double gathered = 0;
  if (gathers(input)) {
    theory.parameter_bytes = d.parameter * (small + (numel - small) / shards);
    const int depth = input.parallel.overlap ? input.parallel.prefetch_blocks + 1 : 1;
    const Slots slots(
        stage.units, [](const Unit& u) { return u.large; }, depth,
        !input.parallel.reshard_after_forward);
    theory.buffer_bytes += d.parameter * slots.elements;
    gathered = gathered_elements(stage, slots);
  }
  if (shards_gradients(input)) {
    theory.gradient_bytes /= shards;
    const Slots slots(
        stage.units, [](const Unit& u) { return u.numel(); }, input.parallel.overlap ? 2 : 1,
        false);
    theory.buffer_bytes += d.gradient * slots.elements;
  }
  move_to_host(input, stage, name == "single" || name == "ddp" ? 1 : shards, theory);
  add_traffic(input, stage, gathered, theory);
  return theory;
}

Theory largest_theory(const TheoryInput& input) {
  Theory largest = theory_of(input, 0);
  for (int stage = 1; stage < input.mesh.pipeline; ++stage) {
    const Theory other = theory_of(input, stage);
    for (double Theory::*bytes :
         {&Theory::parameter_bytes, &Theory::gradient_bytes, &Theory::optimizer_bytes,
          &Theory::buffer_bytes, &Theory::host_bytes}) {
      largest.*bytes = std::max(largest.*bytes, other.*bytes);
    }
  }
  return largest;
}

int moments_of(const OptimizerFactory& optimizer) {
  const at::Tensor parameter = at::zeros({1}), gradient = at::zeros({1});
  return static_cast<int>(
      optimizer({{.parameter = parameter, .gradient = gradient}})->state(0).size());
}

}  // namespace tessera::programs
