// SPDX-License-Identifier: MIT
#pragma once
// Player of the conformance suite: generates its share of the work, and records violations of the
// Strategy contract.
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lib/testing/player.h"

namespace tessera::testing {

// Results on one rank.
struct RankResult {
  std::vector<double> loss, targets, norm;  // by step or evaluation; norms of steps only
  std::vector<std::vector<double>> counters;
  Named parameters, gradients;
  std::vector<std::string> violations;
};

struct Changes {
  double learning_rate = -1;         // negative: the options' rate
  std::vector<double> factors = {};  // for successive calls of scale_gradients()
  double loss_scale = 0;             // 0: not set
  bool skip = false;
};

// A step's global batch has kMicroBatches micro-batches for each of `data_ranks` ranks; one real
// rank may play several.
class CheckedPlayer : public Player {
 public:
  static constexpr int kMicroBatches = 2;
  static constexpr int64_t kRows = 2;
  static constexpr uint64_t kSeed = 11;
  CheckedPlayer(Communicator& world, const MeshExtents& mesh, const StrategyFactory& make,
                const ConformanceOptions& options)
      : Player(world, mesh, make), options_(options) {}

  RankResult& result() { return result_; }
  double learning_rate() const { return options_.learning_rate; }
  void attach() { attach(options_.optimizer); }
  void attach(const OptimizerFactory& optimizer) {
    Player::attach(options_.work.model, kSeed, optimizer);
  }
  std::vector<MicroBatch> share(uint64_t step) const;
  // One step by single calls, without a training loop's additions.
  void train(uint64_t step, const Changes& changes = {}) { train(share(step), changes); }
  void train(const std::vector<MicroBatch>& batches, const Changes& changes = {});
  void forward_backward(const std::vector<MicroBatch>& batches);
  void evaluate(uint64_t step);
  // Visits all of them; a repeated name is a finding.
  void read_parameters();
  void read_gradients();
  void expect_error(const std::string& what, const std::function<void()>& call);
  void expect(bool condition, const std::string& violation);

 private:
  void keep(const StepRecord& record);

  const ConformanceOptions& options_;
  RankResult result_;
};

using Script = std::function<void(CheckedPlayer&)>;

// The strategy under test, and a single rank as reference.
struct Subject {
  const StrategyFactory& make;
  const ConformanceOptions& options;

  std::vector<RankResult> play(const Script& script) const;  // by rank
  RankResult play_reference(const Script& script) const;
};

// joined: one batch with all rows. unsupervised: the batch without targets.
MicroBatch joined(const std::vector<MicroBatch>& batches);
MicroBatch unsupervised(MicroBatch batch);

}  // namespace tessera::testing
