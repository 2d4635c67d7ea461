// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Is it a strategy? Runs an implementation of Strategy on in-process ranks through everything the
/// interface promises. For strategies of a user's own; the project's tests run the built-in ones
/// through it.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/backends/strategy.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/optim/adamw.h"

namespace tessera::testing {

/// Makes the strategy under test for one rank; called on every rank of the mesh, once a check.
using StrategyFactory = std::function<std::unique_ptr<Strategy>(const DeviceMesh&)>;

/// A model, and data for it on the CPU: batch() gives the same micro-batch for equal arguments.
struct ConformanceWork {
  ModelSpec model;  ///< at most a few thousand elements
  std::function<MicroBatch(int64_t rows, uint64_t seed)>
      batch;  ///< makes a micro-batch of so many rows
};

/// Five blocks between a tied embedding, parameters of small and odd sizes, ignored labels, and a
/// counter.
ConformanceWork conformance_work();

/// What the strategy says of itself; each includes those before.
enum class Promise {
  kContract,    ///< what holds for every strategy
  kTrajectory,  ///< and the losses and parameters are those of one rank that sees the whole batch
  kExact,       ///< and so are gradients and norms, however the batch is cut into micro-batches
};

/// How the strategy is checked.
struct ConformanceOptions {
  MeshExtents mesh{.data = 2};                ///< ranks are threads
  Promise promise = Promise::kExact;          ///< the promise that is checked
  ConformanceWork work = conformance_work();  ///< model and data
  /// The optimizer of both runs that are compared.
  OptimizerFactory optimizer = make_adamw({.weight_decay = 0.1});
  double learning_rate = 1e-2;  ///< the rate of every step
  /// Relative, of tensors by norms; comparisons with one rank. "Changes nothing" means bits.
  double tolerance = 1e-5;
  std::vector<std::string> only = {};  ///< names of checks; empty: all of the promise
  std::vector<std::string>* notes = nullptr;  ///< gets what could not be checked, and why
};

/// A promise that was not kept.
struct Finding {
  std::string check;  ///< one of conformance_checks()
  std::string text;   ///< what was expected and what happened
};

std::vector<std::string> conformance_checks(Promise promise);  ///< the names of a promise's checks

/// Empty for a strategy that keeps its promise. An exception inside a check is a finding too.
std::vector<Finding> check_conformance(const StrategyFactory& make,
                                       const ConformanceOptions& options = {});

std::string to_text(const std::vector<Finding>& findings);  ///< one line each

}  // namespace tessera::testing
