// SPDX-License-Identifier: MIT
#pragma once
// The project's parity table: runs one model and one sequence of global batches in any layout and
// compares the results.
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "lib/testing/fuzz.h"
#include "lib/testing/player.h"
#include "tessera/comm/communicator.h"
#include "tessera/train/trainer.h"

namespace tessera::testing {

struct ParityRow {
  ParallelConfig parallel;
  int ranks = 1;  // pipeline x data x context x tensor
  int accumulation = 1;
  int pipeline = 1, tensor = 1, context = 1;
  int expert = 1;  // divides data()
  int data() const { return ranks / (pipeline * tensor * context); }
  MeshExtents mesh() const { return {pipeline, data(), tensor, context, expert}; }
  std::string name() const;
};

struct ParityWork {
  ModelSpec model;
  std::vector<MicroBatch>
      global_batches;  // one per step; rows divide by every row's data ranks * accumulation
  TrainerOptions trainer;
  double weight_decay = 0.1;
  OptimizerFactory optimizer;  // default: AdamW with that weight decay
  uint64_t seed = 7;
  const TensorSource* source = nullptr;  // pretrained weights
  PlainForward forward;  // the model without its blocks, for the oracle; null: the blocks are plain
  // A data rank's micro-batches of a step, if they are not its share of the global batch's rows.
  std::function<std::vector<MicroBatch>(size_t step, const ParityRow&, int data_rank)> batches;
};

// Global batches of random tokens; batch i has the seed first_seed + i.
struct TokenBatches {
  int64_t vocabulary = 31;
  int64_t rows = 24, sequence = 5;
  int steps = 4;
  uint64_t first_seed = 100;
};
// A model on these batches, with warm-up and effective clipping.
ParityWork token_work(ModelSpec model, const TokenBatches& batches, PlainForward forward = {});

// Micro-batches of a data rank.
std::vector<MicroBatch> share_of(const ParityWork& work, size_t step, const ParityRow& row,
                                 int data_rank);

// Results of rank comm.rank(). Gradients are visited after the last step; visits: everything
// visitable before the first step and after every step.
RankRecord run_parity(Communicator& comm, const ParityRow& row, const ParityWork& work,
                      bool visits = false);

// Results of every rank, with threads as ranks.
std::vector<RankRecord> run_on_threads(const ParityRow& row, const ParityWork& work,
                                       bool visits = false);

// Removes BLOOM's and GPT-2's parameters that contain a key bias: its exact gradient is zero, so
// Adam makes steps of rounding noise.
RankRecord without_key_biases(RankRecord result);

// Empty if losses, norms, evaluation, gradients and parameters agree within tolerance (relative;
// tensors by the norm of the difference over the norm). Else the first difference with both values.
std::string difference(const RankRecord& actual, const RankRecord& expected, double tolerance);

}  // namespace tessera::testing
