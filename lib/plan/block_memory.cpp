// SPDX-License-Identifier: MIT
#include "lib/plan/block_memory.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <set>
#include <string>

#include "lib/core/gradient_columns.h"
#include "lib/core/meta.h"
#include "lib/plan/meta_kernels.h"
#include "lib/plan/rules.h"
#include "tessera/backends/pipeline/schedule.h"
#include "tessera/core/deferred_gradients.h"
#include "tessera/core/error.h"
#include "tessera/core/key_value_cache.h"
#include "tessera/sharding/flat_layout.h"

namespace tessera {
namespace {

at::Tensor empty(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::empty(shape, at::TensorOptions(dtype).device(at::kMeta));
}

MicroBatch make_batch(const BatchShape& shape, bool training) {
  const int64_t tokens = shape.rows * shape.length;
  MicroBatch batch;
  batch.input_ids = empty({shape.rows, shape.length}, at::kLong);
  batch.labels = shape.labels > 0 ? empty({shape.labels}, at::kLong)
                                  : empty({shape.rows, shape.length}, at::kLong);
  if (shape.masked) batch.attention_mask = empty({shape.rows, shape.length}, at::kBool);
  if (shape.head_rows > 0) batch.head_positions = empty({shape.head_rows}, at::kLong);
  if (!shape.packed.empty()) {
    PackedRows& packed = batch.packed;
    packed.lengths = shape.packed;
    packed.sequence = shape.sequence;
    packed.offsets = empty({static_cast<int64_t>(shape.packed.size()) + 1}, at::kInt);
    packed.positions = empty({shape.rows, shape.length}, at::kLong);
    packed.first_keys =
        empty({(tokens + shape.sequence - 1) / shape.sequence, shape.sequence}, at::kInt);
    packed.position_count = packed.longest();
  }
  batch.token_count = tokens;
  batch.training = training;
  return batch;
}

// As the allocator counts it.
int64_t rounded(const at::Tensor& x, int64_t unit) {
  return x.defined() ? (static_cast<int64_t>(x.nbytes()) + unit - 1) / unit * unit : 0;
}

// Parameters as a strategy gives them to a block: views of one buffer in the compute dtype, with
// gradients of another to add to. What is tied has one of its own. Returns what all of them take.
int64_t take_place(Block& block, const LayoutPlan& plan, const std::set<std::string>& tied,
                   int64_t unit) {
  const PrecisionConfig& precision = plan.parallel.precision;
  int64_t taken = 0;
  std::vector<Parameter> own;
  const auto give = [&](const std::vector<Parameter>& parameters) {
    const FlatLayout layout(parameters, /*shards=*/1, ShardGranularity::kFlat, 0);
    const at::Tensor values = empty({layout.numel()}, precision.parameter);
    const bool frozen = std::ranges::none_of(
        parameters, [](const Parameter& p) { return p.tensor.requires_grad(); });
    const at::Tensor gradients = empty({frozen ? 0 : layout.numel()}, precision.gradient_dtype());
    for (const FlatEntry& entry : layout.entries()) {
      at::Tensor handle = parameters[entry.source].tensor;
      const bool trained = handle.requires_grad();
      handle.set_data(view_of(values, entry));
      handle.set_requires_grad(trained);
      if (trained) handle.mutable_grad() = view_of(gradients, entry);
    }
    taken += rounded(values, unit) + rounded(gradients, unit);
  };
  for (const Parameter& parameter : block.parameters()) {
    if (tied.contains(parameter.name)) {
      give({parameter});
    } else {
      own.push_back(parameter);
    }
  }
  if (!own.empty()) give(own);
  return taken;
}

}  // namespace

int64_t allocation_unit(const LayoutPlan& plan) { return plan.on_gpu ? 512 : 1; }

BlockMeter::BlockMeter(const LayoutPlan& plan, const BatchShape& batch, Pass pass)
    : plan_(plan),
      pass_(pass),
      capacity_(batch.capacity),
      begun_(batch.begun),
      layers_(plan.mesh.tensor),
      ends_(end_ranks(plan)) {
  register_meta_kernels();
  const MetaStandsFor stands(plan.on_gpu ? at::kCUDA : at::kCPU);
  {
    const MetaMemoryCounter counter(allocation_unit(plan));
    micro_batch_ = make_batch(batch, pass == Pass::kStep);
    micro_batch_.keep_activations = plan.parallel.keeps_activations();
    micro_batch_.gradient_columns = std::make_shared<GradientColumns>();
    batch_bytes_ = counter.live_bytes();
  }
  blocks_ = run_all();
  if (pass == Pass::kStep && micro_batch_.keep_activations &&
      !plan.parallel.recomputed_blocks.empty()) {
    micro_batch_.keep_activations = false;
    again_ = run_all();
  }
}

std::vector<BlockBytes> BlockMeter::run_all() {
  const size_t count = plan_.model.block_count();
  std::map<std::pair<int64_t, double>, size_t> known;  // by cost, of layers
  std::vector<int64_t> hidden;
  std::vector<BlockBytes> blocks;
  for (size_t block = 0; block < count; ++block) {
    const bool is_last = plan_.model.has_loss && block + 1 == count;
    const BlockCost& cost = plan_.model.blocks[block].cost;
    const bool is_layer = block > 0 && !is_last && cost.parameters > 0;
    const std::pair key{cost.parameters, cost.flops_per_token};
    if (is_layer && known.contains(key)) {
      blocks.push_back(blocks[known.at(key)]);
      continue;
    }
    if (is_layer) known[key] = block;
    blocks.push_back(run(block, is_last, hidden));
  }
  return blocks;
}

BlockMeter::~BlockMeter() = default;

std::unique_ptr<Block> BlockMeter::build(size_t index, int64_t& taken) {
  const BlockBuilder& builder = plan_.model.blocks[index];
  const bool is_end = index == 0 || index + 1 == plan_.model.block_count();
  SilentCommunicator& axis = is_end ? ends_ : layers_;
  auto block = builder.build({.device = at::kMeta,
                              .tensor = axis.size() > 1 ? &axis : nullptr,
                              .sequence_parallel = plan_.parallel.sequence_parallel});
  std::set<std::string> tied;
  for (const TiedParameter& tie : plan_.model.tied) {
    if (tie.owner_block == builder.name) tied.insert(tie.owner_parameter);
    if (tie.alias_block == builder.name) tied.insert(tie.alias_parameter);
  }
  taken = take_place(*block, plan_, tied, allocation_unit(plan_));
  return block;
}

BlockBytes BlockMeter::run(size_t index, bool is_last, std::vector<int64_t>& hidden) {
  MetaMemoryCounter counter(allocation_unit(plan_));
  int64_t parameters = 0;
  const auto block = build(index, parameters);
  try {
    return pass_ == Pass::kStep ? step(*block, index > 0, is_last, hidden, counter, parameters)
                                : infer(*block, index > 0, is_last, hidden, counter, parameters);
  } catch (const std::exception& error) {
    const std::string what = error.what();
    fail(ErrorCode::kInternal, "block ", plan_.model.blocks[index].name,
         " cannot run without memory: ", what.substr(0, what.find('\n')));
  }
}

BlockBytes BlockMeter::step(Block& block, bool has_input, bool is_last,
                            std::vector<int64_t>& hidden, MetaMemoryCounter& counter,
                            int64_t parameters) {
  const int64_t unit = allocation_unit(plan_);
  BlockBytes bytes;
  MicroBatch batch = micro_batch_;
  if (is_last) batch.loss_gradient = empty({}, at::kFloat);
  const bool splits =
      plan_.mesh.pipeline > 1 && !is_last && splits_backward(plan_.parallel.pipeline.schedule);
  // The second time nothing is made that stays.
  for (int time = 0; time < 2; ++time) {
    const int64_t empty_handed = counter.live_bytes();
    at::Tensor input;
    if (has_input)
      input = empty(hidden, plan_.parallel.precision.parameter).set_requires_grad(true);
    const auto since = [&](int64_t base) {
      const int64_t most = counter.peak_bytes() - base;
      counter.reset_peak();
      return most;
    };
    counter.reset_peak();
    const int64_t begin = counter.live_bytes();
    if (!is_last) {
      const at::NoGradGuard no_grad;
      block.forward(input, batch);
      bytes.plain = since(begin);
    }
    if (splits && time == 1 && has_input && block.defers_gradients(input, batch)) {
      batch.deferred_gradients = std::make_shared<DeferredGradients>();
    }
    at::Tensor output = block.forward(input, batch);
    bytes.forward = since(begin);
    bytes.kept = counter.live_bytes() - begin;
    if (is_last) {
      torch::autograd::backward({output.reshape({-1}).select(0, 0)}, {batch.loss_gradient});
      bytes.forward = std::max(bytes.forward, since(begin));
    } else {
      bytes.output = rounded(output, unit);
      if (output.requires_grad()) {
        at::Tensor gradient = at::empty(output.sizes(), output.options());
        counter.reset_peak();
        const int64_t base = counter.live_bytes();
        torch::autograd::backward({output}, {gradient});
        (batch.deferred_gradients ? bytes.split : bytes.backward) = since(base);
      }
      hidden = output.sizes().vec();
    }
    if (input.defined()) bytes.input = rounded(input.grad(), unit);
    output.reset();
    input.reset();
    if (const auto deferred = std::exchange(batch.deferred_gradients, nullptr)) {
      bytes.deferred = counter.live_bytes() - empty_handed;
      counter.reset_peak();
      const int64_t base = counter.live_bytes();
      deferred->run();
      bytes.weights = since(base);
      // A backward that does not defer has memory of its own for them: see GradientsAside.
      int64_t aside = 0;
      for (const Parameter& parameter : block.parameters()) {
        if (!deferred->promised()) aside += rounded(parameter.tensor.grad(), unit);
      }
      bytes.split += aside;
      bytes.deferred += aside;
    }
    if (time == 1) bytes.constants = counter.live_bytes() - parameters;
  }
  return bytes;
}

BlockBytes BlockMeter::infer(Block& block, bool has_input, bool is_last,
                             std::vector<int64_t>& hidden, MetaMemoryCounter& counter,
                             int64_t parameters) {
  const at::NoGradGuard no_grad;
  const int64_t unit = allocation_unit(plan_);
  BlockBytes bytes;
  MicroBatch batch = micro_batch_;
  if (capacity_ > 0) {
    const int64_t rows = batch.input_ids.size(0);
    batch.so_far.cache = std::make_shared<KeyValueCache>(rows, capacity_);
    if (begun_) batch.so_far.lengths = empty({rows}, at::kLong);
  }
  // The second time nothing is made that stays.
  for (int time = 0; time < 2; ++time) {
    const at::Tensor input =
        has_input ? empty(hidden, plan_.parallel.precision.parameter) : at::Tensor();
    const int64_t begin = counter.live_bytes();
    counter.reset_peak();
    auto* head = is_last && pass_ == Pass::kPrediction ? dynamic_cast<Head*>(&block) : nullptr;
    const at::Tensor output = head ? head->logits(input, batch) : block.forward(input, batch);
    bytes.plain = counter.peak_bytes() - begin;
    bytes.output = rounded(output, unit);
    if (has_input) bytes.input = rounded(input, unit);
    if (time == 0) continue;
    if (batch.so_far.cache) bytes.cache = batch.so_far.cache->bytes();
    bytes.constants = begin - parameters - bytes.cache - bytes.input;
    hidden = output.sizes().vec();
  }
  return bytes;
}

}  // namespace tessera
