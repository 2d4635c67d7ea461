// SPDX-License-Identifier: MIT
#pragma once
// Training steps in plain LibTorch, and the same steps of an adapted module in a strategy.
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
  std::vector<MicroBatch> batches;  // one per step: the rows of all ranks
  int micro_batches = 4;            // over all data ranks; each batch is divided into these
  std::function<void(MicroBatch&)> adjust = nullptr;  // applied to each micro-batch
  int calls = 1;  // forward_backward() calls per step, see Player::forward_backward()
};

struct Trained {
  Weights weights;             // by "block.parameter"; without the block for a single-block model
  std::vector<double> losses;  // by step
  std::vector<double> squared_norms;  // of the gradient, by step
  int64_t optimizer_bytes = 0;        // over all ranks
  std::set<std::string> frozen;       // names of frozen weights, from visits
};

// SGD with momentum, and weight decay of matrices. loss: forward and the SUM over the rows'
// targets.
Trained train_plain(torch::nn::Module& module, std::span<const MicroBatch> batches,
                    const std::function<at::Tensor(const MicroBatch&)>& loss);

// Returns the weights that rank 0 sees.
Trained train_under(const ParallelConfig& config, const MeshExtents& mesh, const ModelSpec& model,
                    const TrainingWork& work);
// Every rank builds its own model.
Trained train_under(const ParallelConfig& config, const MeshExtents& mesh,
                    const std::function<ModelSpec()>& model_of_rank, const TrainingWork& work);

// Empty if losses and norms agree within 1e-5, names are equal, and values differ by at most 1e-5
// of the largest value. Else the difference.
std::string difference(const Trained& actual, const Trained& expected);

// Layouts for every module: each strategy alone, two data ranks where it shards, with and without
// recomputation, and two pipeline stages.
struct NamedLayout {
  std::string name;
  ParallelConfig config;
  MeshExtents mesh;
};
std::vector<NamedLayout> layouts_of_modules();

}  // namespace tessera::testing
