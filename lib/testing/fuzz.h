// SPDX-License-Identifier: MIT
#pragma once
// Layout fuzzer: searches for models, layouts and options under which a strategy's numbers differ
// from a plain fp64 trainer's. Shrinks a failure to one line of text.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
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

// The whole computation of a model without its blocks. Parameters by "block.parameter" (tied ones
// under their owner), in the computation's dtype -> the last block's result.
using PlainForward = std::function<at::Tensor(const std::map<std::string, at::Tensor>&,
                                              const MicroBatch&, const BlockContext&)>;

// Seeds of the micro-batches, recorded by the last block.
class SeedLog {
 public:
  void add(const MicroBatch& batch, uint64_t seed);
  // While `copy` lives, seeds recorded for it belong to `batch`.
  void add_copy(const MicroBatch& batch, const MicroBatch& copy);
  uint64_t of(const MicroBatch& batch) const;  // 0: never seen
  bool ambiguous() const;  // one micro-batch had two seeds, or two micro-batches had the same
  void clear();

 private:
  mutable std::mutex mutex_;
  std::map<const void*, uint64_t> by_labels_;
  std::map<const void*, const void*> copies_;
  bool ambiguous_ = false;
};

// A family's model and data for a case.
struct FuzzModel {
  ModelSpec model;
  // The model that another data rank passes in; null: `model` on every rank.
  std::function<ModelSpec(int data_rank)> of_rank;
  // Partly supervised; rows x length, if the family has a length.
  std::function<MicroBatch(int64_t rows, int64_t length, uint64_t seed)> batch;
  PlainForward forward;  // null: the oracle runs the blocks of `plain`, or the model's own
  std::optional<ModelSpec> plain;  // the model in other operations
  // The oracle's dtype with `plain` or `forward`. fp32 where an operation has no fp64: noise is
  // that of weights moved by a unit in their last place.
  at::ScalarType widest = at::kDouble;
  // forward runs the blocks' operations in the same order and dtypes, so every gradient term has
  // the same bits.
  bool same_terms = false;
  std::shared_ptr<SeedLog> seeds;  // null: no random draws
  // Strategy::predict() returns the scores of the cross-entropy loss.
  bool gives_scores = false;
};

// A kind of model: how to draw and build it. Named by FuzzCase::model.
struct FuzzFamily {
  std::function<void(std::mt19937_64&, FuzzCase&)> draw;  // sets the model's fields
  std::function<FuzzModel(const FuzzCase&)> build;
  // Cases with a smaller model, for shrinking.
  std::function<std::vector<FuzzCase>(const FuzzCase&)> smaller;
  // Layout features that the family supports.
  bool tensor_axis = false, sequence_parallel = false, shared_vocabulary = false;
  bool context_axis = false, expert_axis = false;
  bool fp8 = false;        // products in 8 bits
  bool fp32_only = false;  // parameters and gradients
};
using FuzzFamilies = std::map<std::string, FuzzFamily>;
FuzzFamilies fuzz_families();  // "toy", "modules" and "chain"

using FuzzStrategyFactory =
    std::function<std::unique_ptr<Strategy>(const ParallelConfig&, const DeviceMesh&)>;

struct FuzzOptions {
  at::Device device = at::kCPU;  // of all ranks, which share a GPU
  uint64_t seed = 1;
  double seconds = 60;        // time limit, or
  int64_t cases = 0;          // number of cases (0: no limit),
  int64_t first = 0;          // starting with this case of the seed
  std::string line;           // runs only this case
  double case_seconds = 120;  // a longer case ends the process and prints its line
  bool shrink = true;
  size_t most_failures = 5;  // stops after these
  bool verbose = false;
  std::vector<std::string> only_strategies = {};  // subset of strategy_names(); empty: all
  std::vector<std::string> only_models = {};      // subset of the families; empty: all
  FuzzFamilies families = fuzz_families();
  // Returns a reason to skip a case, or "".
  std::function<std::string(const FuzzCase&)> leave_out = {};
  // Checks this world rank's memory at the end of a case; returns the error, or "".
  std::function<std::string(const FuzzCase&, const ModelSpec&, int rank, const StrategyMemory&)>
      check_memory = {};
  // Checks the operations of a case's ranks; returns the error, or "". micro_batches: one rank's in
  // a step.
  std::function<std::string(const FuzzCase&, const ModelSpec&,
                            std::span<const MicroBatch> micro_batches)>
      check_communication = {};
  std::function<void(const std::string&)> print = {};  // prints a line; null: to stdout
  // For a user's own strategies: draws only mesh, model and work, and keeps the line's parallel
  // configuration.
  bool own_strategy = false;
  MeshExtents largest = {8, 8, 8, 4};  // limits of drawn axes, within 8 ranks
};

struct FuzzSummary {
  int64_t held = 0, refused = 0, left_out = 0;
  std::vector<std::string> failures;  // shrunk lines with their differences
  std::map<std::string, int64_t> refusals, reasons_left_out;
  // Passed cases by feature and value, counted where the option has an effect. Values that a long
  // run must cover are present even with count 0.
  std::map<std::string, std::map<std::string, int64_t>> values;
  std::vector<std::string> rarer_than(int64_t least) const;  // "feature: value (cases)"
  // No failure, and at most half of the cases refused.
  bool good() const { return failures.empty() && (held > 0 && refused <= held); }
};
std::string to_text(const FuzzSummary& summary);

// Runs cases on in-process ranks, with the oracle on the CPU. Hanging local operations end after
// TESSERA_COLLECTIVE_TIMEOUT_S, set to 10 s here if unset.
FuzzSummary fuzz_layouts(const FuzzStrategyFactory& make, const FuzzOptions& options);
FuzzSummary fuzz_layouts(const StrategyFactory& make, FuzzOptions options);

}  // namespace tessera::testing
