// SPDX-License-Identifier: MIT
#pragma once
// Looks without end for models, layouts and options under which a strategy computes other numbers
// than a plain trainer in fp64 does, and shrinks what it finds to one line of text.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/testing/fuzz_case.h"
#include "tessera/model/block_context.h"
#include "tessera/model/model_spec.h"
#include "tessera/testing/strategy_conformance.h"

namespace tessera::testing {

// A model's whole computation without its blocks: trainable and frozen parameters by
// "block.parameter" (tied ones at their owner), in the dtype of the computation -> what the last
// block returns.
using PlainForward = std::function<at::Tensor(const std::map<std::string, at::Tensor>&,
                                              const MicroBatch&, const BlockContext&)>;

// The seeds that micro-batches were given, as the last block saw them.
class SeedLog {
 public:
  void add(const MicroBatch& batch, uint64_t seed);
  // What add() hears of `copy`, as long as that lives, is of `batch`.
  void add_copy(const MicroBatch& batch, const MicroBatch& copy);
  uint64_t of(const MicroBatch& batch) const;  // 0: never seen
  bool ambiguous() const;                      // one micro-batch had two seeds, or two had the same
  void clear();

 private:
  mutable std::mutex mutex_;
  std::map<const void*, uint64_t> by_labels_;
  std::map<const void*, const void*> copies_;
  bool ambiguous_ = false;
};

// What a family makes of a case.
struct FuzzModel {
  ModelSpec model;
  // The model as another data rank's program hands it in; null: model, on every rank.
  std::function<ModelSpec(int data_rank)> of_rank;
  // Supervised in part; rows x length as far as the family has a length.
  std::function<MicroBatch(int64_t rows, int64_t length, uint64_t seed)> batch;
  PlainForward forward;  // null: the oracle runs the model's own blocks, whole
  // forward runs the blocks' operations in their order and dtypes: every term of a gradient has the
  // same bits.
  bool same_terms = false;
  std::shared_ptr<SeedLog> seeds;  // null: nothing is drawn at random
  // Strategy::predict() gives the scores of which the loss is the cross-entropy.
  bool gives_scores = false;
};

// A kind of model: how it is drawn and built. FuzzCase::model names it.
struct FuzzFamily {
  std::function<void(std::mt19937_64&, FuzzCase&)> draw;  // sets the fields that are the model's
  std::function<FuzzModel(const FuzzCase&)> build;
  // The case with less of the model, for shrinking.
  std::function<std::vector<FuzzCase>(const FuzzCase&)> smaller;
  // What of the layouts the family knows.
  bool tensor_axis = false, sequence_parallel = false, shared_vocabulary = false;
};
using FuzzFamilies = std::map<std::string, FuzzFamily>;
FuzzFamilies fuzz_families();  // "toy", "modules" and "chain"

using FuzzStrategyFactory =
    std::function<std::unique_ptr<Strategy>(const ParallelConfig&, const DeviceMesh&)>;

struct FuzzOptions {
  at::Device device = at::kCPU;  // of all ranks, which share it where it is a GPU
  uint64_t seed = 1;
  double seconds = 60;        // stops then, or
  int64_t cases = 0;          // after this many (0: no such end),
  int64_t first = 0;          // from this one of the seed
  std::string line;           // only this case
  double case_seconds = 120;  // a case that takes longer ends the process with its line
  bool shrink = true;
  size_t most_failures = 5;  // then it stops
  bool verbose = false;
  std::vector<std::string> only_strategies = {};  // of strategy_names(); empty: all
  std::vector<std::string> only_models = {};      // of families; empty: all
  FuzzFamilies families = fuzz_families();
  // Cases that are not run now: a reason, or empty.
  std::function<std::string(const FuzzCase&)> leave_out = {};
  // What is wrong with what this rank of the world holds at the end of a case, or empty.
  std::function<std::string(const FuzzCase&, const ModelSpec&, int rank, const StrategyMemory&)>
      check_memory = {};
  // What is wrong with what the ranks of a case call, or empty. micro_batches: of one rank, a step.
  std::function<std::string(const FuzzCase&, const ModelSpec&,
                            std::span<const MicroBatch> micro_batches)>
      check_communication = {};
  std::function<void(const std::string&)> print = {};  // a line; null: to stdout
  // Strategies of a user's own: only the mesh, the model and the work are drawn, and the parallel
  // configuration of this case stays.
  bool own_strategy = false;
  MeshExtents largest = {8, 8, 8};  // of axes that are drawn, within 8 ranks
};

struct FuzzSummary {
  int64_t held = 0, refused = 0, left_out = 0;
  std::vector<std::string> failures;  // shrunk lines, each with what differed
  std::map<std::string, int64_t> refusals, reasons_left_out;
  // Held cases by feature and value: options count where they do something, values that a long run
  // must have had stand there with 0 as well.
  std::map<std::string, std::map<std::string, int64_t>> values;
  std::vector<std::string> rarer_than(int64_t least) const;  // "feature: value (cases)"
  // No failure, and at least half of the cases were not refused.
  bool good() const { return failures.empty() && (held > 0 && refused <= held); }
};
std::string to_text(const FuzzSummary& summary);

// Runs cases on in-process ranks; the oracle is on the CPU. Operations of the local transport that
// hang end after TESSERA_COLLECTIVE_TIMEOUT_S, which is set to 10 s here unless the caller has set
// it.
FuzzSummary fuzz_layouts(const FuzzStrategyFactory& make, const FuzzOptions& options);
FuzzSummary fuzz_layouts(const StrategyFactory& make, FuzzOptions options);

}  // namespace tessera::testing
