// SPDX-License-Identifier: MIT
#pragma once
// Forward and backward of micro-batches whose shapes repeat, recorded once on the device.
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

// The work of one shape, and the memory that it reads and writes.
struct StepGraph {
  MicroBatch inputs;
  at::Tensor loss_gradient;              // d(objective)/d(loss sum)
  std::shared_ptr<RecordedSeeds> seeds;  // what it draws from at random
  at::Tensor sums;                       // of the loss, written by forward
  std::unique_ptr<DeviceGraph> forward, backward;
  int64_t bytes = 0;  // that both allocate at most

  // What the work reads becomes that of the micro-batch.
  void take(const MicroBatch& micro_batch, uint64_t seed, const at::Tensor& gradient) const;
};

// [Note: recorded micro-batches]
// The kernels of a small micro-batch take hardly longer than it takes to issue them, and the gaps
// between them add up. So forward and backward are recorded once and issued by one call each. The
// first micro-batches of a shape run kernel by kernel: they make plans and find out which
// algorithms are fastest, and what is recorded stays as it is. Of many shapes those are recorded
// that come often. Recorded work has memory of its own, which the work of all shapes takes turns
// in. That of other work before it is given back first, and nothing is recorded unless the device
// has room for both.
class StepGraphs {
 public:
  explicit StepGraphs(at::Device device) : device_(device) {}

  // All that the work on a micro-batch depends on but values. adds: to gradients of others.
  using Key = std::vector<int64_t>;
  static Key key_of(const MicroBatch& micro_batch, const BlockContext& context, bool adds);

  // The parts of a micro-batch's work. forward returns the sums of the loss; undo takes back what
  // the host thinks has happened.
  struct Work {
    std::function<at::Tensor(const StepGraph&)> forward;
    std::function<void()> backward, undo;
  };
  // What was recorded for such micro-batches, perhaps just now; null: this one is to run_eagerly().
  const StepGraph* graph_for(const Key& key, const MicroBatch& micro_batch, const Work& work);
  void run_eagerly(const Key& key, const std::function<void()>& work);
  // Its work has run.
  void ran(const StepGraph& graph) const;
  // Gives all memory back: a step found none.
  void clear();

 private:
  struct Shape {
    int runs = 0;
    int64_t bytes = 0;     // that a run allocates at most
    bool settled = false;  // the last run found everything as it will stay
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
  int64_t runs_ = 0;        // of all shapes
  int runs_since_new_ = 0;  // of shapes that were known
};

}  // namespace tessera
