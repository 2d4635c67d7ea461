// SPDX-License-Identifier: MIT
#pragma once
// Reference trainer, independent of the strategies: the whole model on one rank, LibTorch's
// autograd, and own fp64 sums, norms, clipping and AdamW.
#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/testing/fuzz.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/model/model_spec.h"
#include "tessera/optim/adamw.h"

namespace tessera::testing {

inline constexpr double kOracleMomentum = 0.9, kOracleAdagradEpsilon = 1e-10;
// Muon's learning rate relative to the others', and its momentum.
inline constexpr double kOracleMuonRate = 4, kOracleMuonMomentum = 0.95;

struct OracleOptions {
  uint64_t seed = 0;  // of the weights, as in BuildContext
  AdamWConfig adamw;
  // One of oracle_optimizers(), with the decay, betas and epsilon of adamw; sgd has
  // kOracleMomentum, muon has adamw beside it.
  std::string optimizer = "adamw";
  PlainForward forward;                       // default: the model's blocks
  std::shared_ptr<const SeedLog> seeds = {};  // the strategy's seeds of micro-batches; null: 0
  Fp8 fp8 = Fp8::kOff;                        // of passes in training; a given forward heeds it
  Fp8Layers fp8_layers = {};                  // of blocks, in these passes
  FrozenDtype frozen = FrozenDtype::kSame;    // of linear layers
};

// Names of the optimizers that it knows, as find_optimizer() takes them; one that the fuzzer shall
// draw more often stands there several times.
std::vector<const char*> oracle_optimizers();

// All micro-batches of a step or an evaluation, by data rank.
using GlobalBatch = std::vector<std::vector<MicroBatch>>;

// Dtypes of the model; sums over micro-batches and ranks are always in fp64.
struct OracleDtypes {
  at::ScalarType weights = at::kFloat;  // parameters are rounded to this
  at::ScalarType compute = at::kFloat;
  uint64_t moved = 0;  // nonzero: seed for moving every weight by up to a unit in its last place
};

struct OracleLoss {
  double loss = 0, targets = 0;
  std::vector<double> counters;
  std::vector<double> terms;  // terms of the loss by micro-batch
};

struct OracleGradient : OracleLoss {
  // fp64 [data ranks, micro-batches, uses, elements]: the terms of the gradient's sum. Tied
  // parameters have one use per place.
  at::Tensor parts;
  at::Tensor sum() const;
};

struct OracleStep {
  double learning_rate = 1e-2, loss_scale = 1, max_norm = 0;
  bool skip = false;
};

struct OracleReport {
  double loss = 0, norm = 0, clip = 1;
  bool skipped = false;
  at::Tensor gradient;  // before clipping, without the loss scale
};

// Trainable parameters are concatenated in fp64 vectors, in the order of parameters().
class Oracle {
 public:
  struct FlatParameter {
    std::string name;  // "block.parameter" of the owner
    std::vector<int64_t> shape;
    int64_t offset = 0, numel = 0;
    bool weight_decay = true;
    bool matrix = false;      // updated as a matrix
    bool fp32_state = false;  // see Parameter
  };

  Oracle(const ModelSpec& model, const OracleOptions& options);

  const std::vector<FlatParameter>& entries() const { return entries_; }
  const std::map<std::string, at::Tensor>& frozen() const { return frozen_; }
  bool tied() const { return uses_ > 1; }
  at::Tensor& parameters() { return parameters_; }
  at::Tensor flat(const std::map<std::string, at::Tensor>& by_name) const;
  std::map<std::string, at::Tensor> by_name(const at::Tensor& flat) const;  // fp32

  // divisor: used by backward; the terms are then rescaled to the mean's. 0: the number of targets.
  OracleGradient gradient(const GlobalBatch& batch, double loss_scale, const OracleDtypes& dtypes,
                          double divisor = 0);
  OracleLoss evaluate(const GlobalBatch& batch, const OracleDtypes& dtypes);
  // Running statistics by "block.buffer" in their own dtypes. Evaluations use them; training passes
  // over the named rank's micro-batches update them.
  std::map<std::string, at::Tensor>& statistics() { return statistics_; }
  void advance_statistics(const std::vector<MicroBatch>& of_rank, const OracleDtypes& dtypes);
  // One optimizer step. Returns the magnitude that rounding acts on: the update with all terms of
  // its sums taken positive. exact: the gradient has exactly the bits that the strategy's optimizer
  // sees.
  at::Tensor update(const at::Tensor& gradient, double learning_rate, bool exact = true);
  // AdamW's moments after update(), and fp32's possible deviation from them.
  struct Moments {
    at::Tensor exp_avg, exp_avg_sq, exp_avg_slack, exp_avg_sq_slack;
    int64_t step = 0;  // counted from 1
  };
  // True if the strategy keeps moments in fewer than 32 bits. The oracle's are exact until
  // adopt_moments().
  bool follows_moments() const;
  Moments moments() const;
  void adopt_moments(const Moments& moments);
  // A complete step of the oracle's own, with fp32 moments.
  OracleReport train(const GlobalBatch& batch, const OracleStep& step,
                     const OracleDtypes& dtypes = {});

 private:
  struct Use {
    at::Tensor handle;
    std::string owner;
    size_t number = 0;  // index among this owner's uses
  };
  struct Rule;    // an optimizer's
  struct Change;  // what it makes of a gradient
  static const std::vector<Rule>& rules();
  static const Rule& find_rule(const std::string& name);
  bool updates_matrices() const;
  at::Tensor adam(const Change& change);
  at::Tensor muon(const Change& change);
  // left: what the pass makes of the statistics, if somebody asks.
  at::Tensor run(const MicroBatch& batch, const OracleDtypes& dtypes, bool training,
                 std::map<std::string, at::Tensor>* left = nullptr);
  void round_frozen();
  at::Tensor value_of(const std::string& name, const OracleDtypes& dtypes) const;
  double count_targets(const GlobalBatch& batch) const;

  friend std::vector<const char*> oracle_optimizers();

  OracleOptions options_;
  const Rule* rule_ = nullptr;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<std::string> names_;  // of the blocks
  std::vector<Use> used_;
  std::map<std::string, size_t> entry_of_;
  std::vector<FlatParameter> entries_;
  std::map<std::string, at::Tensor> frozen_, statistics_;
  size_t uses_ = 1;
  at::Tensor parameters_, exp_avg_, exp_avg_sq_, exp_avg_size_;
  at::Tensor exp_avg_slack_, exp_avg_sq_slack_;
  at::Tensor decay_, lr_factor_, beta1_, beta2_;  // per element
  std::map<std::string, at::Tensor> momenta_;     // of matrices, fp32
  int64_t updates_ = 0;
};

}  // namespace tessera::testing
