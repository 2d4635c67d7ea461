// SPDX-License-Identifier: MIT
#pragma once
// Runs a model in a layout on the ranks of a mesh and records the results: for the fuzzer, the
// conformance suite and the project's tests.
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/backends/parallel_config.h"
#include "tessera/testing/strategy_conformance.h"

namespace tessera::testing {

int rank_count(const MeshExtents& mesh);

// Everything that each rank builds and attaches.
struct Setup {
  ModelSpec model = {};
  MeshExtents mesh = {};
  ParallelConfig parallel = {};
  OptimizerFactory optimizer = make_adamw({});
  uint64_t seed = 3;  // of the weights
  const TensorSource* source = nullptr;
  StrategyFactory make = nullptr;  // default: make_strategy() with `parallel`
};

using Named = std::map<std::string, at::Tensor>;

// Visited values by "block.parameter": fp32 copies on the CPU. A repeated name is stored in *twice,
// or throws if that is null.
Named parameters_of(Strategy& strategy, std::string* twice = nullptr);
Named gradients_of(Strategy& strategy, std::string* twice = nullptr);
Named buffers_of(Strategy& strategy);  // in their own dtypes

struct StepOptions {
  double learning_rate = 1e-2;
  double loss_scale = 1, max_norm = 0;  // 0: no clipping
  bool skip = false;
  int calls = 1;        // forward_backward() calls, which share the micro-batches
  bool visits = false;  // records the step's gradients, parameters and buffers
};

struct StepRecord {
  double loss = 0, targets = 0;
  std::optional<std::vector<double>> counters;  // if reported
  double norm = 0, clip = 1, loss_scale = 1, update_scale = 1, learning_rate = 0;
  bool skipped = false;
  Named gradients, parameters;  // gradients with the loss scale, parameters after the step
  Named buffers;                // after the step
};

struct EvaluationRecord {
  size_t steps_done = 0;
  double loss = 0, targets = 0;
  std::vector<double> counters;
  std::optional<double> loss_of_scores;  // computed here from predict(), if there are scores
};

// Results on one rank.
struct RankRecord {
  Named initial, final;
  std::vector<StepRecord> steps;
  std::vector<EvaluationRecord> evaluations;
  StrategyMemory memory;  // at the end
};

// One number of every step.
std::vector<double> series(const RankRecord& record, double StepRecord::*number);

// "" if all numbers agree within the tolerance; 0: bit for bit. Tensors are compared by norms; a
// norm below least_norm is compared relative to that.
std::string difference(const std::vector<double>& actual, const std::vector<double>& expected,
                       double tolerance);
std::string difference(const Named& actual, const Named& expected, double tolerance,
                       double least_norm = 1e-12);

// One rank's strategy.
class Player {
 public:
  // Makes the strategy; attach() must follow.
  Player(Communicator& world, const MeshExtents& mesh, const StrategyFactory& make);
  // Makes and attaches the strategy.
  Player(Communicator& world, const Setup& setup);
  Player(const Player&) = delete;  // the strategy keeps its mesh's address

  Strategy& strategy() const { return *strategy_; }
  const DeviceMesh& mesh() const { return mesh_; }
  Communicator& world() const { return mesh_.world(); }
  int rank() const { return mesh_.world().rank(); }
  int data_rank() const { return mesh_.coordinate(Axis::kData); }
  int data_ranks() const { return mesh_.extent(Axis::kData); }
  int64_t bytes_sent() const;  // over all axes

  void attach(const ModelSpec& model, uint64_t seed, const OptimizerFactory& optimizer,
              const TensorSource* source = nullptr);
  // Results of a step, read to the host. Several calls accumulate like one; each gets equally many
  // micro-batches, the last one the rest. At most `calls` calls.
  StepRecord forward_backward(const std::vector<MicroBatch>& batches, int calls = 1);
  // A step as in a training loop: gradients are unscaled and clipped at once, and a step with a
  // non-finite norm is skipped. A loss scale must be set.
  StepRecord train(const std::vector<MicroBatch>& batches, const StepOptions& options = {});
  EvaluationRecord evaluate(const std::vector<MicroBatch>& batches);

 private:
  DeviceMesh mesh_;
  std::unique_ptr<Strategy> strategy_;
};

using PlayerScript = std::function<void(Player&)>;

// Runs ranks as threads.
void play(const Setup& setup, const PlayerScript& script);

}  // namespace tessera::testing
