// SPDX-License-Identifier: MIT
#pragma once
// Pipelines of all strategies for unit tests.
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "lib/testing/player.h"
#include "tessera/backends/pipeline/pipeline.h"
#include "tessera/core/error.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

namespace tessera::testing {

inline ParallelConfig pipeline_config(const std::string& schedule, int chunks = 1) {
  ParallelConfig config{.strategy = "ddp"};
  config.pipeline.schedule = schedule;
  config.pipeline.chunks = chunks;
  return config;
}

// Records which rank builds which of its blocks, and how often.
class BuildLog {
 public:
  ModelSpec watched(ModelSpec model, int rank) {
    for (BlockBuilder& block : model.blocks) {
      block.build = [this, build = block.build, name = block.name, rank](const BuildContext& c) {
        const std::lock_guard lock(mutex_);
        by_rank_[rank].insert(name);
        return build(c);
      };
    }
    return model;
  }
  const std::multiset<std::string>& of(int rank) { return by_rank_[rank]; }

 private:
  std::mutex mutex_;
  std::map<int, std::multiset<std::string>> by_rank_;
};

// Checks the measured waits of two steps, the second with measuring enabled.
inline void check_measured_waits(const Setup& setup, const MicroBatch& batch) {
  play(setup, [&](Player& player) {
    auto& pipeline = dynamic_cast<Pipeline&>(player.strategy());
    const std::vector<MicroBatch> batches(3, batch);
    player.train(batches);
    test::require(pipeline.times().total_s == 0, "nothing was asked for");
    pipeline.measure_times(true);
    pipeline.forward_backward(batches);
    const PipelineTimes times = pipeline.times();
    test::require(times.total_s > 0 && times.waited_s > 0 && times.waited_s < times.total_s,
                  "waited ", times.waited_s, " s of ", times.total_s);
  });
}

// The error that every rank gets.
inline std::string refusal(const MeshExtents& extents, const ParallelConfig& config,
                           const ModelSpec& model) {
  std::mutex mutex;
  std::set<std::string> messages;
  test::run_ranks(rank_count(extents), [&](Communicator& comm) {
    const std::string message = test::require_error(
        ErrorCode::kInvalidArgument,
        [&] {
          Player(comm, {model, extents, config});
        },
        "attach");
    const std::lock_guard lock(mutex);
    messages.insert(message);
  });
  CHECK(messages.size() == 1);
  return *messages.begin();
}

}  // namespace tessera::testing
