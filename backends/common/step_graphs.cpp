// SPDX-License-Identifier: MIT
#include "backends/common/step_graphs.h"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <exception>
#include <string_view>
#include <utility>

#include "lib/core/device_reserve.h"
#include "lib/ops/gemm_autotune.h"
#include "tessera/core/device.h"
#include "tessera/core/log.h"

namespace tessera {
namespace {

constexpr int kRunsBefore = 3;  // eager runs of a shape before capture
// With ever new shapes none is captured: capture takes as long as some steps.
constexpr int kRunsWithoutNew = 6;
constexpr size_t kFewShapes = 8;      // all of so few shapes are captured
constexpr int64_t kShareOfRuns = 16;  // of more, those of at least every sixteenth micro-batch
constexpr size_t kMostShapes = 64;    // limit of counted shapes

at::Tensor copy_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.clone(at::MemoryFormat::Contiguous) : tensor;
}

void write(const at::Tensor& to, const at::Tensor& from) {
  if (from.defined()) at::Tensor(to).copy_(from, /*non_blocking=*/true);
}

void add_shape(StepGraphs::Key& key, const at::Tensor& tensor) {
  key.push_back(tensor.defined() ? static_cast<int64_t>(tensor.scalar_type()) : -1);
  if (!tensor.defined()) return;
  key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
}

}  // namespace

void StepGraph::take(const MicroBatch& micro_batch, uint64_t seed,
                     const at::Tensor& gradient) const {
  write(inputs.input_ids, micro_batch.input_ids);
  write(inputs.labels, micro_batch.labels);
  write(inputs.attention_mask, micro_batch.attention_mask);
  write(inputs.head_positions, micro_batch.head_positions);
  write(loss_gradient, gradient);
  seeds->write(seed);
}

StepGraphs::Key StepGraphs::key_of(const MicroBatch& micro_batch, const BlockContext& context,
                                   bool adds) {
  Key key{adds, context.training, context.save_norm_outputs, context.fused_layers};
  for (const at::Tensor& tensor : {micro_batch.input_ids, micro_batch.labels,
                                   micro_batch.attention_mask, micro_batch.head_positions}) {
    add_shape(key, tensor);
  }
  return key;
}

const StepGraph* StepGraphs::graph_for(const Key& key, const MicroBatch& micro_batch,
                                       const Work& work) {
  ++runs_;
  const auto found = shapes_.find(key);
  if (found == shapes_.end()) return nullptr;
  Shape& shape = found->second;
  ++runs_since_new_;
  if (shape.graph == nullptr && is_ready(shape)) {
    shape.graph = recorded(micro_batch, work);
    shape.refused = shape.graph == nullptr;
    if (shape.graph != nullptr) ++recorded_;
  }
  return shape.graph.get();
}

// Called before capture, when eager runs equal occurrences.
bool StepGraphs::comes_often(const Shape& shape) const {
  return shapes_.size() <= kFewShapes || kShareOfRuns * shape.runs >= runs_;
}

bool StepGraphs::is_ready(const Shape& shape) const {
  return !shape.refused && shape.settled && shape.runs >= kRunsBefore && comes_often(shape) &&
         runs_since_new_ >= kRunsWithoutNew && has_room(shape.bytes);
}

bool StepGraphs::has_room(int64_t bytes) const {
  const MemoryUse use = memory_use(device_);
  return device_memory(device_).first + use.reserved_bytes - use.allocated_bytes >= 2 * bytes;
}

std::unique_ptr<StepGraph> StepGraphs::recorded(const MicroBatch& micro_batch, const Work& work) {
  auto graph = std::make_unique<StepGraph>();
  try {
    MicroBatch& inputs = graph->inputs;
    inputs = micro_batch;
    for (at::Tensor* tensor :
         {&inputs.input_ids, &inputs.labels, &inputs.attention_mask, &inputs.head_positions}) {
      *tensor = copy_of(*tensor);
    }
    graph->loss_gradient = at::zeros({}, at::TensorOptions(at::kFloat).device(device_));
    graph->seeds = std::make_shared<RecordedSeeds>(device_);
    c10::getDeviceAllocator(device_.type())->emptyCache();
    if (recorded_ == 0) pool_ = make_graph_pool(device_);  // an unused pool would be freed
    graph->bytes = peak_allocated(device_, [&] {
      graph->forward =
          std::make_unique<DeviceGraph>(*pool_, [&] { graph->sums = work.forward(*graph); });
      graph->backward = std::make_unique<DeviceGraph>(*pool_, work.backward);
    });
  } catch (const std::exception& error) {
    work.undo();
    const std::string_view reason = error.what();  // LibTorch's continues with the call stack
    log(LogLevel::kDebug, "a micro-batch cannot be recorded and runs kernel by kernel: ",
        reason.substr(0, reason.find('\n')));
    return nullptr;
  }
  return graph;
}

void StepGraphs::run_eagerly(const Key& key, const std::function<void()>& work) {
  const auto found = shapes_.find(key);
  if (found == shapes_.end()) runs_since_new_ = 0;
  if (found == shapes_.end() && shapes_.size() == kMostShapes) return work();
  Shape& shape = found == shapes_.end() ? shapes_[key] : found->second;
  const int64_t trials = ops::products_in_tuning();
  std::optional<ops::TuneEagerly> at_once;
  if (shape.runs > 0 && !shape.refused && comes_often(shape)) at_once.emplace();
  if (++shape.runs == 2) {  // the first run allocates persistent memory
    shape.bytes = peak_allocated(device_, work);
  } else {
    work();
  }
  shape.settled = ops::products_in_tuning() == trials;
}

void StepGraphs::clear() {
  shapes_.clear();
  recorded_ = 0;
  runs_ = 0;  // shapes count their own from now on
}

void StepGraphs::ran(const StepGraph& graph) const { count_as_peak(device_, graph.bytes); }

}  // namespace tessera
