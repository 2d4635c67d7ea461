// SPDX-License-Identifier: MIT
#pragma once
// Training steps in plain LibTorch, and the same steps of an adapted module under a strategy.
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tessera/backends/parallel_config.h"

namespace torch::nn {
class Module;
}

namespace tessera::testing {

using Weights = std::map<std::string, at::Tensor>;

struct TrainingWork {
  std::vector<MicroBatch> batches;                    // one a step: the rows of all ranks
  int micro_batches = 4;                              // of all data ranks, into which each is cut
  std::function<void(MicroBatch&)> adjust = nullptr;  // of each micro-batch
  int calls = 1;  // of forward_backward() a step, see Player::forward_backward()
};

struct Trained {
  Weights weights;             // by "block.parameter", without the block where the model is one
  std::vector<double> losses;  // by step
  std::vector<double> squared_norms;  // of the gradient, by step
  int64_t optimizer_bytes = 0;        // of all ranks
  std::set<std::string> frozen;       // of the weights, as visits say
};

// SGD with momentum, and weight decay of matrices.
// loss: the module's forward and the SUM over the rows' targets.
Trained train_plain(torch::nn::Module& module, std::span<const MicroBatch> batches,
                    const std::function<at::Tensor(const MicroBatch&)>& loss);

// The weights are those that rank 0 sees.
Trained train_under(const ParallelConfig& config, const MeshExtents& mesh, const ModelSpec& model,
                    const TrainingWork& work);
// Every rank makes the model that it trains.
Trained train_under(const ParallelConfig& config, const MeshExtents& mesh,
                    const std::function<ModelSpec()>& model_of_rank, const TrainingWork& work);

// Empty when losses and norms agree within 1e-5 and the same names have values whose largest
// difference is within 1e-5 of the largest value; else what differs.
std::string difference(const Trained& actual, const Trained& expected);

// What every module has to survive: each strategy on its own, with two data ranks where it shards,
// with and without recomputation, and two pipeline stages.
struct NamedLayout {
  std::string name;
  ParallelConfig config;
  MeshExtents mesh;
};
std::vector<NamedLayout> layouts_of_modules();

}  // namespace tessera::testing
