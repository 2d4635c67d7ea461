// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Conformance suite for implementations of Strategy, on in-process ranks, for custom and built-in
/// strategies.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/backends/strategy.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/optim/adamw.h"

namespace tessera::testing {

/// Makes the strategy under test for one rank; called on every rank of the mesh, once per check.
using StrategyFactory = std::function<std::unique_ptr<Strategy>(const DeviceMesh&)>;

/// A model with data on the CPU: batch() returns equal micro-batches for equal arguments.
struct ConformanceWork {
  ModelSpec model;  ///< at most a few thousand elements
  std::function<MicroBatch(int64_t rows, uint64_t seed)>
      batch;  ///< makes a micro-batch of so many rows
};

/// Default work: five blocks with a tied embedding, parameters of small and odd sizes, ignored
/// labels, and a counter.
ConformanceWork conformance_work();

/// Level of conformance that a strategy claims; each includes those before.
enum class Promise {
  kContract,    ///< properties of every strategy
  kTrajectory,  ///< losses and parameters equal those of one rank with the whole batch
  /// Gradients and norms are equal, too, for every division of the batch into micro-batches.
  kExact,
};

/// Options of check_conformance().
struct ConformanceOptions {
  MeshExtents mesh{.data = 2};                ///< ranks are threads
  Promise promise = Promise::kExact;          ///< level to check
  ConformanceWork work = conformance_work();  ///< model and data
  /// Optimizer of both compared runs.
  OptimizerFactory optimizer = make_adamw({.weight_decay = 0.1});
  double learning_rate = 1e-2;  ///< rate of every step
  /// Relative tolerance of tensor norms in comparisons with one rank. Checks that nothing changes
  /// compare bits.
  double tolerance = 1e-5;
  std::vector<std::string> only = {};         ///< names of checks; empty: all of the level
  std::vector<std::string>* notes = nullptr;  ///< receives checks that could not run, and why
};

/// A violation of the contract, found by a check.
struct Violation {
  std::string check;  ///< one of conformance_checks()
  std::string text;   ///< expected and actual behaviour
};

std::vector<std::string> conformance_checks(Promise promise);  ///< names of a level's checks

/// Runs the checks; empty: the strategy conforms. An exception inside a check is a violation, too.
std::vector<Violation> check_conformance(const StrategyFactory& make,
                                         const ConformanceOptions& options = {});

std::string to_text(const std::vector<Violation>& violations);  ///< one line each

}  // namespace tessera::testing
