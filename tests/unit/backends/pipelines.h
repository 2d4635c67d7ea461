#pragma once
// Pipelines of all strategies for unit tests.
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "tessera/backends/parallel_config.h"
#include "tessera/core/error.h"
#include "tessera/optim/adamw.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

namespace tessera::testing {

inline ParallelConfig pipeline_config(const std::string& schedule, int chunks = 1) {
  ParallelConfig config{.strategy = "ddp"};
  config.pipeline.schedule = schedule;
  config.pipeline.chunks = chunks;
  return config;
}

inline std::unique_ptr<Strategy> attach(const DeviceMesh& mesh, const ParallelConfig& config,
                                        const ModelSpec& model) {
  auto strategy = make_strategy(config, mesh);
  strategy->attach(model, {.seed = 3}, make_adamw({}));
  return strategy;
}

// The message that every rank gets.
inline std::string refusal(const MeshExtents& extents, const ParallelConfig& config,
                           const ModelSpec& model) {
  std::mutex mutex;
  std::set<std::string> messages;
  test::run_ranks(extents.pipeline * extents.data * extents.tensor, [&](Communicator& comm) {
    DeviceMesh mesh(comm, extents);
    const std::string message = test::require_error(
        ErrorCode::kInvalidArgument, [&] { attach(mesh, config, model); }, "attach");
    const std::lock_guard lock(mutex);
    messages.insert(message);
  });
  CHECK(messages.size() == 1);
  return *messages.begin();
}

}  // namespace tessera::testing
