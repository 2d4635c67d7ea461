// SPDX-License-Identifier: MIT
#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "backends/pipeline/schedule_kinds.h"
#include "lib/run/recomputation.h"
#include "lib/tools/plan/plan.h"
#include "tessera/backends/pipeline/partition.h"
#include "tessera/backends/pipeline/schedule.h"
#include "tessera/ops/fp8.h"

namespace tessera::programs {
namespace {

// Fitted to 41 rates on one to four H200s and H100s from 2026-11-21 to 2026-11-25
// (docs/results/scaling.md); 34 are met within 5 %.
struct Machine {
  double products;     // share of peak for matrix products
  double tf32;         // share of peak in TF32
  double attention;    // share of peak for attention's products
  double half_filled;  // tokens at which a product takes twice its best time per token
  double passes;       // bytes of 16-bit activations moved per column
  double logit_bytes;  // bytes moved per logit
  // Seconds per layer: launches, and tails of kernels that do not fill the device.
  double seconds_of_layer;
  double seconds_of_meeting;  // seconds of synchronisation per step with communication
  double cost_beside;         // exposed share of overlapped communication
  double seconds_of_sum;      // seconds per activation sum over the tensor axis, beyond its bytes
};
constexpr Machine kGpu{0.65, 0.25, 0.37, 4.5, 20.5, 10, 150e-6, 1.8e-3, 0.55, 40e-6};
// On a CPU the same cores compute and copy, without overlap.
constexpr Machine kCpu{0.5, 0.5, 0.5, 32, 0, 0, 0, 0, 0.05, 0};

// What experts of a layer take beside their products on a GPU: bytes of 16-bit activations moved
// per column of their rows, in and out of the experts and inside; of thin products with their
// adapters; and seconds of routing, launches and tails. Fitted to OLMoE-1B-7B and Qwen3-30B-A3B on
// H200s (benchmarks/results/2026-11-30-h200.md).
struct ExpertCosts {
  double outer, inner, adapted, seconds;
};
constexpr ExpertCosts kExperts{16, 25, 60, 0.7e-3};
// Products in 8 bits: how many times as fast as in 16 bits; and bytes that casts move per column of
// their inputs and outputs, with a scale a matrix. Fitted to llama-3.2-1b, bloom-3b and qwen2.5-14b
// on H200s (benchmarks/results/2026-11-30-h200.md).
constexpr double kFp8Speed = 1.65, kFp8CastBytes = 6.4;
// AdamW's share of the memory's rate with moments in bf16; assumed for 8 bits, too.
constexpr double kSmallMoments = 0.73;

double peak_of(const Card& card, const TrainOptions& o) {
  if (o.parallel.precision.parameter != at::kFloat) return card.half_flops;
  return o.precision.tf32 ? card.tf32_flops : card.fp32_flops;
}

bool adapts_experts(const ModelSpec& model) {
  return std::ranges::any_of(parameters_of(model), [](const ParameterInfo& parameter) {
    return parameter.trained && parameter.name.find("experts") != std::string::npos;
  });
}

// Seconds of a layer's experts beside their products. passing: of a column of all tokens.
double expert_seconds(const ModelSpec& model, const DecoderConfig& shape, bool trains_adapters,
                      double passing, double tensor) {
  const auto hidden = static_cast<double>(shape.hidden);
  const double inner = static_cast<double>(shape.expert_inner) / tensor;
  double bytes = kExperts.outer * hidden + kExperts.inner * inner;
  if (trains_adapters && adapts_experts(model)) bytes += kExperts.adapted * (hidden + inner);
  return kExperts.seconds + passing * bytes * static_cast<double>(shape.experts_per_token);
}

// Of a layer's products those in 8 bits: their share of all operations, and the columns of their
// inputs and outputs.
struct Fp8Products {
  double share = 0, columns = 0;
};

Fp8Products fp8_products(const DecoderConfig& shape, const PrecisionConfig& precision,
                         bool experts) {
  const auto hidden = static_cast<double>(shape.hidden),
             inner = static_cast<double>(experts ? shape.shared_inner : shape.inner_size()),
             heads = static_cast<double>(shape.head_size() * shape.heads),
             qkv = heads + static_cast<double>(2 * shape.head_size() * shape.key_head_count());
  const double gated = shape.gated ? 2 : 1;
  const Fp8Layers layers = fp8_layers_of(precision.fp8_layers);  // all with Fp8::kAuto
  Fp8Products products;
  double all = 0;
  const auto add = [&](double in, double out, bool eight) {
    all += in * out;
    if (eight) products.share += in * out, products.columns += in + out;
  };
  add(hidden, qkv, layers.qkv);
  add(heads, hidden, layers.o);
  if (inner > 0) {
    add(hidden, gated * inner, layers.up);
    add(inner, hidden, layers.down);
  }
  if (experts) {
    all += static_cast<double>(shape.experts_per_token * shape.expert_inner) * hidden * (gated + 1);
  }
  products.share /= all;
  return products;
}

// Seconds per block for a micro-batch on one rank; 0 for the embedding, which only copies.
std::vector<double> block_seconds(const Prepared& model, const TrainOptions& o,
                                  const PlannedHosts& hosts, const ParallelConfig& config,
                                  const Machine& machine, double tensor) {
  const DecoderConfig& shape = model.config();
  const std::vector<BlockBuilder>& blocks = model.model.blocks;
  const auto tokens =
      static_cast<double>(o.training.per_device_train_batch_size * o.data.max_seq_length) /
      static_cast<double>(o.axes.context);
  const double all = std::accumulate(
      blocks.begin(), blocks.end(), 0.0,
      [](double sum, const BlockBuilder& block) { return sum + block.cost.flops_per_token; });
  const double products = model.model.flops_per_token(0);
  const double attention = model.model.flops_per_token(o.data.max_seq_length) - products;
  const bool tf32 = o.precision.tf32 && o.parallel.precision.parameter == at::kFloat;
  const double usual = tf32 ? machine.tf32 : machine.products;
  const double efficiency = hosts.efficiency > 0 ? hosts.efficiency : usual;
  const double flops_per_s = peak_of(hosts.card, o) * efficiency * tensor;
  const double rows = tokens / tensor;
  const double of_products = tokens * products / flops_per_s * (rows + machine.half_filled) / rows;
  const double of_attention = tokens * attention / flops_per_s * usual / machine.attention;
  // Norms and residual sums are computed by every tensor rank, or once per token with sequence
  // parallelism.
  const double parts = o.parallel.sequence_parallel ? tensor : 2 * tensor / (tensor + 1);
  const auto inner = static_cast<double>(shape.inner_size()) * (shape.gated ? 1.5 : 1);
  const double columns = static_cast<double>(shape.hidden) / parts + inner / (2 * tensor);
  const double width = o.parallel.precision.parameter == at::kFloat ? 2 : 1;
  const double passing = tokens * width / hosts.card.memory_bytes_per_s;
  const auto layers = static_cast<double>(shape.layers);
  const double again = 1 + more_operations(/*share=*/1, o.trains_adapters());
  std::vector<double> seconds(blocks.size());
  const bool on_gpu = !hosts.card.device.empty();
  const bool fused = on_gpu && o.parallel.precision.parameter != at::kFloat;
  const bool keeps = o.axes.context == 1 || o.parallel.context_attention == ContextAttention::kKeys;
  const bool attends_once = fused && keeps && config.saves_attention_outputs();
  const double of_experts =
      on_gpu && shape.experts > 0
          ? expert_seconds(model.model, shape, o.trains_adapters(), passing, tensor)
          : 0;
  // Forward of experts, which backward runs again.
  const double experts_again = config.recomputes_experts()
                                   ? 6 * tokens * static_cast<double>(shape.hidden) *
                                             static_cast<double>(shape.expert_inner) *
                                             static_cast<double>(shape.experts_per_token) /
                                             flops_per_s +
                                         of_experts / 3
                                   : 0;
  const Fp8 fp8 = config.precision.fp8;
  const bool eight_bits = fp8 != Fp8::kOff && hosts.card.has_fp8 && fused;
  const double casts = passing * kFp8CastBytes * (fp8 == Fp8::kRowwise ? 2 : 1) / tensor;
  for (size_t i = 1; i + 1 < blocks.size(); ++i) {
    double layer = of_products * blocks[i].cost.flops_per_token / all;
    if (eight_bits) {
      const Fp8Products in_fp8 = fp8_products(shape, config.precision, shape.has_experts(i - 1));
      layer += casts * in_fp8.columns - layer * in_fp8.share * (1 - 1 / kFp8Speed);
    }
    const double once = attends_once ? of_attention / layers : 0;
    seconds[i] = once + (config.recomputes(i) ? again : 1) *
                            (layer + of_attention / layers - once +
                             passing * columns * machine.passes + machine.seconds_of_layer +
                             (shape.has_experts(i - 1) ? of_experts + experts_again : 0));
  }
  seconds.back() = of_products * blocks.back().cost.flops_per_token / all +
                   passing * static_cast<double>(shape.vocabulary) / tensor * machine.logit_bytes;
  return seconds;
}

// Seconds of the slowest stage; for gpipe, of the slowest in forward plus the slowest in backward.
double stage_seconds(const std::vector<double>& blocks, const PipelineConfig& config,
                     const ModelSpec& model, int stages, bool recompute) {
  if (stages == 1) return std::accumulate(blocks.begin(), blocks.end(), 0.0);
  const double share = forward_share(recompute), loss = blocks.back();
  std::vector<double> forward(static_cast<size_t>(stages),
                              config.shared_vocabulary ? loss / stages : 0);
  std::vector<double> backward(forward.size(), 0);
  const std::vector<ModelPart> parts = partition(model, config, stages, recompute);
  for (size_t part = 0; part < parts.size(); ++part) {
    const size_t stage = part % forward.size(), end = parts[part].first + parts[part].count;
    for (size_t block = parts[part].first; block < end; ++block) {
      const bool is_loss = block + 1 == blocks.size();  // the loss runs its backward in forward
      forward[stage] += (is_loss ? 1 : share) * blocks[block];
      backward[stage] += (is_loss ? 0 : 1 - share) * blocks[block];
    }
  }
  if (schedule_kind(config.schedule) == ScheduleKind::kGPipe) {
    return *std::ranges::max_element(forward) + *std::ranges::max_element(backward);
  }
  std::ranges::transform(forward, backward, forward.begin(), std::plus<>());
  return *std::ranges::max_element(forward);
}

}  // namespace

// [Note: predicted time]
// Compute: matrix products at a share of the card's peak, in 8 bits faster but with casts, memory
// traffic between them, and a time per layer; experts' rows move, and adapters of experts read
// them. Communication: of overlapped traffic half is exposed, or all that exceeds backward, two
// thirds of the compute. Sums of activations are fully exposed, and so is everything on a CPU. The
// optimizer moves its state through memory once. Offloaded state crosses the link in both
// directions at once, or the host's cores are as fast; the first forward overlaps it. Offloaded
// activations add what their copies take beyond forward. Kept attention is not formed again.
StepTime step_time(const Prepared& model, const RunPlan& run, const PlannedHosts& hosts,
                   const ParallelConfig& config, const MemoryPlan& memory) {
  const TrainOptions& o = run.options;
  const Card& card = hosts.card;
  const bool gpu = !card.device.empty();
  const Machine& machine = gpu ? kGpu : kCpu;
  const auto micro_batches = static_cast<double>(o.training.gradient_accumulation_steps);
  const std::vector<double> blocks =
      block_seconds(model, o, hosts, config, machine, run.mesh.tensor);
  StepTime time{.compute = micro_batches * stage_seconds(blocks, config.pipeline, model.model,
                                                         run.mesh.pipeline,
                                                         o.parallel.gradient_checkpointing)};
  const auto turns = static_cast<int>(o.training.gradient_accumulation_steps);
  const bool splits = std::ranges::any_of(
      run.stages, [](const MemoryPlan& stage) { return stage.activations.defers; });
  const double idle =
      splits ? split_bubble_share(run.mesh.pipeline, turns)
             : bubble_share(run.mesh.pipeline, turns, static_cast<int>(o.parallel.pipeline.chunks));
  time.bubble = time.compute * idle / (1 - idle);
  double beside = 0;
  for (const Message& message : run.messages) {
    const bool hidden = o.parallel.overlap && gpu && message.traffic.axis != Axis::kTensor &&
                        message.traffic.axis != Axis::kContext &&
                        message.traffic.axis != Axis::kExpert;
    (hidden ? beside : time.exposed) += message.seconds();
  }
  if (!run.messages.empty()) time.exposed += machine.seconds_of_meeting;
  if (run.mesh.tensor > 1) {  // two per layer in forward, two in backward
    const auto layers = static_cast<double>(model.config().layers);
    time.exposed += 4 * layers / run.mesh.pipeline * micro_batches * machine.seconds_of_sum;
  }
  time.exposed += std::max(beside * machine.cost_beside, beside - time.compute * 2 / 3);
  const StateMemory& state = memory.state;
  const double states = state.optimizer_bytes + state.host_state_bytes;
  const double on_device = states > 0 ? state.optimizer_bytes / states : 1;
  time.optimizer =
      (2 * state.optimizer_bytes + on_device * (state.gradient_bytes + state.parameter_bytes)) /
      (card.memory_bytes_per_s *
       (gpu && o.training.moments() != MomentsDtype::kFloat32 ? kSmallMoments : 1));
  // Masters and moments move in and out at once, overlapping the layers' first forward.
  const double layers = std::accumulate(blocks.begin() + 1, blocks.end() - 1, 0.0);
  // One of them is the first forward.
  const double passes = o.parallel.gradient_checkpointing ? 4 : 3;
  const double forward = layers / passes / run.mesh.pipeline;
  time.offload = std::max(0.0, state.host_state_bytes / card.host_bytes_per_s - forward);
  // A micro-batch's activations leave during its forward, and return during its longer backward.
  const double leaving = micro_batches * state.host_activation_bytes / card.host_bytes_per_s;
  time.offload += std::max(0.0, leaving - forward);
  return time;
}

}  // namespace tessera::programs
