// SPDX-License-Identifier: MIT
#pragma once
// CUDA graphs of forward and backward, for micro-batches of repeating shapes.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "lib/core/device_graph.h"
#include "lib/core/recorded_seeds.h"
#include "tessera/core/micro_batch.h"
#include "tessera/model/block_context.h"

namespace tessera {

// Graph of one shape, with the memory that it reads and writes.
struct StepGraph {
  MicroBatch inputs;
  at::Tensor loss_gradient;              // d(objective)/d(loss sum)
  std::shared_ptr<RecordedSeeds> seeds;  // what it draws from at random
  at::Tensor sums;                       // of the loss, written by forward
  std::unique_ptr<DeviceGraph> forward, backward;
  int64_t bytes = 0;  // upper bound of both parts' allocations

  // Copies the micro-batch into the graph's inputs.
  void take(const MicroBatch& micro_batch, uint64_t seed, const at::Tensor& gradient) const;
};

// [Note: recorded micro-batches]
// Kernels of a small micro-batch run hardly longer than their launches take, and the gaps add up.
// So forward and backward are captured as CUDA graphs, launched by one call each. The first
// micro-batches of a shape run eagerly: they make plans and autotune, as a graph never changes.
// With many shapes only frequent ones are captured. Graphs have a memory pool, which those of all
// shapes share. Cached memory of earlier work is freed first, and nothing is captured unless the
// device has space for both.
class StepGraphs {
 public:
  explicit StepGraphs(at::Device device) : device_(device) {}

  // Everything that the work depends on except values. adds: whether it accumulates into earlier
  // gradients.
  using Key = std::vector<int64_t>;
  static Key key_of(const MicroBatch& micro_batch, const BlockContext& context, bool adds);

  // Parts of a micro-batch's work. forward returns the loss sums; undo resets the host's
  // bookkeeping.
  struct Work {
    std::function<at::Tensor(const StepGraph&)> forward;
    std::function<void()> backward, undo;
  };
  // The graph for such micro-batches, perhaps just captured; null: call run_eagerly().
  const StepGraph* graph_for(const Key& key, const MicroBatch& micro_batch, const Work& work);
  void run_eagerly(const Key& key, const std::function<void()>& work);
  // Records that the graph has run.
  void ran(const StepGraph& graph) const;
  // Frees all memory after a step ran out of it.
  void clear();

 private:
  struct Shape {
    int runs = 0;
    int64_t bytes = 0;     // upper bound of a run's allocations
    bool settled = false;  // whether the last run allocated and tuned nothing new
    bool refused = false;
    std::unique_ptr<StepGraph> graph;
  };
  bool comes_often(const Shape& shape) const;
  bool is_ready(const Shape& shape) const;
  bool has_room(int64_t bytes) const;
  std::unique_ptr<StepGraph> recorded(const MicroBatch& micro_batch, const Work& work);

  const at::Device device_;
  std::optional<DeviceGraphPool> pool_;
  std::map<Key, Shape> shapes_;
  size_t recorded_ = 0;
  int64_t runs_ = 0;        // all shapes together
  int runs_since_new_ = 0;  // runs since the last new shape
};

}  // namespace tessera
