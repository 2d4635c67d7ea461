#pragma once
// Plays scripts of steps on the ranks of a mesh and keeps what came out.
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/testing/strategy_conformance.h"

namespace tessera::testing {

// What one rank saw.
struct Outcome {
  std::vector<double> loss, targets, norm;  // by step or evaluation; norms of steps only
  std::vector<std::vector<double>> counters;
  std::map<std::string, at::Tensor> parameters, gradients;  // "block.parameter"
  std::vector<std::string> findings;
};

struct StepOptions {
  double learning_rate = -1;         // negative: the options' one
  std::vector<double> factors = {};  // given to scale_gradients() one by one
  double loss_scale = 0;             // 0: none is set
  bool skip = false;
};

// One rank's strategy under test, and its share of the work. The global batch of a step consists of
// kMicroBatches micro-batches for each of `data_ranks` ranks; one real rank may play several.
class Player {
 public:
  static constexpr int kMicroBatches = 2;
  static constexpr int64_t kRows = 2;
  static constexpr uint64_t kSeed = 11;
  Player(Communicator& world, const MeshExtents& mesh, const StrategyFactory& make,
         const ConformanceOptions& options);

  Strategy& strategy() { return *strategy_; }
  Outcome& outcome() { return outcome_; }
  int world_rank() const { return mesh_.world().rank(); }
  bool plays_first_data_rank() const { return mesh_.coordinate(Axis::kData) == 0; }
  double learning_rate() const { return options_.learning_rate; }
  void attach();
  void attach(const OptimizerFactory& optimizer);
  std::vector<MicroBatch> share(uint64_t step) const;
  void train(uint64_t step, const StepOptions& options = {}) { train(share(step), options); }
  void train(const std::vector<MicroBatch>& batches, const StepOptions& options = {});
  void forward_backward(const std::vector<MicroBatch>& batches);
  void evaluate(uint64_t step);
  // With what is visited: a name twice is a finding.
  void read_parameters();
  void read_gradients();
  void expect_error(const std::string& what, const std::function<void()>& call);
  void expect(bool condition, const std::string& finding);

 private:
  void keep(const StepResult& result);

  const ConformanceOptions& options_;
  DeviceMesh mesh_;
  std::unique_ptr<Strategy> strategy_;
  Outcome outcome_;
};

using Script = std::function<void(Player&)>;

// What is under test, and one rank to compare it with.
struct Subject {
  const StrategyFactory& make;
  const ConformanceOptions& options;

  std::vector<Outcome> play(const Script& script) const;  // by rank
  Outcome play_reference(const Script& script) const;
};

// The batch that holds the rows of all, and the batch without any target.
MicroBatch joined(const std::vector<MicroBatch>& batches);
MicroBatch unsupervised(MicroBatch batch);

// "" when all numbers agree: within the tolerance, or to the bit with 0. Tensors are compared by
// norms; one below least_norm is measured against that.
std::string difference(const std::vector<double>& actual, const std::vector<double>& expected,
                       double tolerance);
std::string difference(const std::map<std::string, at::Tensor>& actual,
                       const std::map<std::string, at::Tensor>& expected, double tolerance,
                       double least_norm = 1e-12);

}  // namespace tessera::testing
