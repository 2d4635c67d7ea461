// SPDX-License-Identifier: MIT
#pragma once
// Runs one model and one sequence of global batches under any layout and compares what came out:
// the parity table of the project.
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
  int ranks = 1;  // pipeline x data x tensor
  int accumulation = 1;
  int pipeline = 1, tensor = 1;
  int data() const { return ranks / (pipeline * tensor); }
  MeshExtents mesh() const { return {pipeline, data(), tensor}; }
  std::string name() const;
};

struct ParityWork {
  ModelSpec model;
  std::vector<MicroBatch>
      global_batches;  // one per step; rows divide by every row's data ranks * accumulation
  TrainerOptions trainer;
  double weight_decay = 0.1;
  OptimizerFactory optimizer;  // AdamW with that weight decay unless given
  uint64_t seed = 7;
  const TensorSource* source = nullptr;  // pretrained weights
  PlainForward forward;  // the model without its blocks, for the oracle; null: those are plain
  // A data rank's micro-batches of a step where they are not its share of the global batch's rows.
  std::function<std::vector<MicroBatch>(size_t step, const ParityRow&, int data_rank)> batches;
};

// Global batches of random tokens; batch i has the seed first_seed + i.
struct TokenBatches {
  int64_t vocabulary = 31;
  int64_t rows = 24, sequence = 5;
  int steps = 4;
  uint64_t first_seed = 100;
};
// model on these, with a warm-up and clipping that is active.
ParityWork token_work(ModelSpec model, const TokenBatches& batches, PlainForward forward = {});

// The micro-batches of a rank of the data axis.
std::vector<MicroBatch> share_of(const ParityWork& work, size_t step, const ParityRow& row,
                                 int data_rank);

// What rank comm.rank() sees. Gradients are visited behind the last step, or what is visited also
// before the first step and behind every one.
RankRecord run_parity(Communicator& comm, const ParityRow& row, const ParityWork& work,
                      bool visits = false);

// What every rank sees, with threads as ranks.
std::vector<RankRecord> run_on_threads(const ParityRow& row, const ParityWork& work,
                                       bool visits = false);

// A key's bias has no gradient in exact arithmetic, so Adam turns rounding noise into steps there:
// leaves out the parameters of BLOOM and GPT-2 that hold one.
RankRecord without_key_biases(RankRecord result);

// Empty when all losses, norms, evaluation, gradients and parameters agree within tolerance
// (relative; tensors by the norm of the difference over the norm), else what differs first, with
// both values.
std::string difference(const RankRecord& actual, const RankRecord& expected, double tolerance);

}  // namespace tessera::testing
