// SPDX-License-Identifier: MIT
#pragma once
// Plays a model under a layout, on the ranks of a mesh, and keeps what came out: for the fuzzer,
// the conformance suite and the tests of the project.
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

// What every rank makes and attaches.
struct Setup {
  ModelSpec model = {};
  MeshExtents mesh = {};
  ParallelConfig parallel = {};
  OptimizerFactory optimizer = make_adamw({});
  uint64_t seed = 3;  // of the weights
  const TensorSource* source = nullptr;
  StrategyFactory make = nullptr;  // make_strategy() of `parallel` unless given
};

using Named = std::map<std::string, at::Tensor>;

// What is visited, by "block.parameter": copies in fp32 on the CPU. A name that comes twice goes to
// *twice, or throws.
Named parameters_of(Strategy& strategy, std::string* twice = nullptr);
Named gradients_of(Strategy& strategy, std::string* twice = nullptr);
Named buffers_of(Strategy& strategy);  // in their own dtypes

struct StepOptions {
  double learning_rate = 1e-2;
  double loss_scale = 1, max_norm = 0;  // 0: no clipping
  bool skip = false;
  int calls = 1;        // of forward_backward(), over which the micro-batches are dealt out
  bool visits = false;  // keeps gradients, parameters and buffers of the step
};

struct StepRecord {
  double loss = 0, targets = 0;
  std::optional<std::vector<double>> counters;  // where they are reported
  double norm = 0, clip = 1, loss_scale = 1, update_scale = 1, learning_rate = 0;
  bool skipped = false;
  Named gradients, parameters;  // gradients still loss-scaled, parameters after the step
  Named buffers;                // after the step
};

struct EvaluationRecord {
  size_t steps_done = 0;
  double loss = 0, targets = 0;
  std::vector<double> counters;
  std::optional<double> loss_of_scores;  // of predict(), computed here; where there are scores
};

// What one rank saw.
struct RankRecord {
  Named initial, final;
  std::vector<StepRecord> steps;
  std::vector<EvaluationRecord> evaluations;
  StrategyMemory memory;  // at the end
};

// One number of every step.
std::vector<double> series(const RankRecord& record, double StepRecord::*number);

// "" when all numbers agree: within the tolerance, or to the bit with 0. Tensors are compared by
// norms; one below least_norm is measured against that.
std::string difference(const std::vector<double>& actual, const std::vector<double>& expected,
                       double tolerance);
std::string difference(const Named& actual, const Named& expected, double tolerance,
                       double least_norm = 1e-12);

// One rank's strategy.
class Player {
 public:
  // The strategy is made; attach() follows.
  Player(Communicator& world, const MeshExtents& mesh, const StrategyFactory& make);
  // Made and attached.
  Player(Communicator& world, const Setup& setup);
  Player(const Player&) = delete;  // the strategy knows its mesh by address

  Strategy& strategy() const { return *strategy_; }
  const DeviceMesh& mesh() const { return mesh_; }
  Communicator& world() const { return mesh_.world(); }
  int rank() const { return mesh_.world().rank(); }
  int data_rank() const { return mesh_.coordinate(Axis::kData); }
  int data_ranks() const { return mesh_.extent(Axis::kData); }
  int64_t bytes_sent() const;  // over all axes

  void attach(const ModelSpec& model, uint64_t seed, const OptimizerFactory& optimizer,
              const TensorSource* source = nullptr);
  // What the step returned, read; of several calls that accumulate as if they were one. Each gets
  // as many micro-batches as the others, the last one the rest; there are at most as many calls.
  StepRecord forward_backward(const std::vector<MicroBatch>& batches, int calls = 1);
  // A step as a training loop does it: gradients unscaled and clipped at once, and a step whose
  // norm is not finite is skipped. A loss scale must have been set.
  StepRecord train(const std::vector<MicroBatch>& batches, const StepOptions& options = {});
  EvaluationRecord evaluate(const std::vector<MicroBatch>& batches);

 private:
  DeviceMesh mesh_;
  std::unique_ptr<Strategy> strategy_;
};

using PlayerScript = std::function<void(Player&)>;

// On threads as ranks.
void play(const Setup& setup, const PlayerScript& script);

}  // namespace tessera::testing
