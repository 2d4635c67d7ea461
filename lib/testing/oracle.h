// SPDX-License-Identifier: MIT
#pragma once
// A plain trainer that shares nothing with the strategies: the whole model on one rank, LibTorch's
// autograd, sums, norms, clipping and AdamW of its own in fp64.
#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lib/testing/fuzz.h"
#include "tessera/model/model_spec.h"
#include "tessera/optim/adamw.h"

namespace tessera::testing {

inline constexpr double kOracleMomentum = 0.9, kOracleAdagradEpsilon = 1e-10;
// Of matrices: the rate over that of the rest.
inline constexpr double kOracleMuonRate = 4, kOracleMuonMomentum = 0.95;

struct OracleOptions {
  uint64_t seed = 0;  // of the weights, as in BuildContext
  AdamWConfig adamw;
  // adamw, adam, lion (of the same decay and betas), sgd (with kOracleMomentum), adagrad, muon (of
  // hidden matrices, with adamw beside it)
  std::string optimizer = "adamw";
  PlainForward forward;                       // the model's blocks unless given
  std::shared_ptr<const SeedLog> seeds = {};  // that the strategy gave micro-batches; null: 0
};

// All micro-batches of a step or an evaluation, by data rank.
using GlobalBatch = std::vector<std::vector<MicroBatch>>;

// In which dtypes the model runs; sums over micro-batches and ranks are in fp64 always.
struct OracleDtypes {
  at::ScalarType weights = at::kFloat;  // what parameters are rounded to
  at::ScalarType compute = at::kFloat;
  uint64_t moved = 0;  // not 0: every weight by up to a unit in its last place, drawn from this
};

struct OracleLoss {
  double loss = 0, targets = 0;
  std::vector<double> counters;
  std::vector<double> terms;  // of the loss, by micro-batch
};

struct OracleGradient : OracleLoss {
  // fp64 [data ranks, micro-batches, uses, elements]: the terms of the sum that is the gradient.
  // Parameters that are tied have a use for each place.
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

// Trainable parameters lie one after the other in vectors of fp64, in the order of parameters().
class Oracle {
 public:
  struct Place {
    std::string name;  // "block.parameter" of the owner
    std::vector<int64_t> shape;
    int64_t offset = 0, numel = 0;
    bool weight_decay = true;
    bool matrix = false;      // updated as a whole
    bool fp32_state = false;  // see Parameter
  };

  Oracle(const ModelSpec& model, const OracleOptions& options);

  const std::vector<Place>& places() const { return places_; }
  const std::map<std::string, at::Tensor>& frozen() const { return frozen_; }
  bool tied() const { return uses_ > 1; }
  at::Tensor& parameters() { return parameters_; }
  at::Tensor flat(const std::map<std::string, at::Tensor>& by_name) const;
  std::map<std::string, at::Tensor> by_name(const at::Tensor& flat) const;  // fp32

  // divisor: by which backward divides, before the terms are made those of the mean; 0: targets.
  OracleGradient gradient(const GlobalBatch& batch, double loss_scale, const OracleDtypes& dtypes,
                          double divisor = 0);
  OracleLoss evaluate(const GlobalBatch& batch, const OracleDtypes& dtypes);
  // Running statistics by "block.buffer", in the dtypes that they are kept in: evaluations use
  // them, and training passes over the micro-batches of the rank that is named for them advance
  // them.
  std::map<std::string, at::Tensor>& statistics() { return statistics_; }
  void advance_statistics(const std::vector<MicroBatch>& of_rank, const OracleDtypes& dtypes);
  // One step of the optimizer; returns the size of what rounding acts on: the update with every
  // term of its sums taken positive. exact: the gradient has the very bits that the strategy's
  // optimizer sees.
  at::Tensor update(const at::Tensor& gradient, double learning_rate, bool exact = true);
  // AdamW's moments as update() left them, and how far fp32 may be from them.
  struct Moments {
    at::Tensor exp_avg, exp_avg_sq, exp_avg_slack, exp_avg_sq_slack;
  };
  // Whether they are kept in fewer bits than 32: the oracle keeps them exactly, until it is told
  // what was left of them.
  bool follows_moments() const;
  Moments moments() const;
  void adopt_moments(const Moments& moments);
  // A whole step of its own, with moments in fp32.
  OracleReport train(const GlobalBatch& batch, const OracleStep& step,
                     const OracleDtypes& dtypes = {});

 private:
  struct Use {
    at::Tensor handle;
    std::string owner;
    size_t number = 0;  // of the uses of this owner
  };
  at::Tensor adam(const at::Tensor& gradient, const at::Tensor& size, const at::Tensor& rate);
  at::Tensor lion(const at::Tensor& gradient, const at::Tensor& rate);
  at::Tensor muon(const at::Tensor& gradient, const at::Tensor& rate, bool exact);
  // left: what the pass makes of the statistics, if somebody asks.
  at::Tensor run(const MicroBatch& batch, const OracleDtypes& dtypes, bool training,
                 std::map<std::string, at::Tensor>* left = nullptr);
  at::Tensor value_of(const std::string& name, const OracleDtypes& dtypes) const;
  double count_targets(const GlobalBatch& batch) const;

  OracleOptions options_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Use> used_;
  std::map<std::string, size_t> place_of_;
  std::vector<Place> places_;
  std::map<std::string, at::Tensor> frozen_, statistics_;
  size_t uses_ = 1;
  at::Tensor parameters_, exp_avg_, exp_avg_sq_, exp_avg_size_;
  at::Tensor exp_avg_slack_, exp_avg_sq_slack_;
  at::Tensor decay_, lr_factor_, beta1_, beta2_;  // of every element
  std::map<std::string, at::Tensor> momenta_;     // of matrices, fp32
  int64_t updates_ = 0;
};

}  // namespace tessera::testing
