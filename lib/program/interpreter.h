// SPDX-License-Identifier: MIT
#pragma once
// Runs a graph under autograd.
#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>
#include <vector>

#include "lib/program/call.h"
#include "lib/program/graph.h"

namespace tessera::program {

// Operators are looked up and their arguments placed once; values are freed after their last use.
// run() may be called by several threads.
class Interpreter {
 public:
  // Throws Error(kDataLoss), which names file, node and operator, for what does not fit the
  // operator's schema and for factories of more than kMostElements elements.
  explicit Interpreter(std::shared_ptr<const Graph> graph);

  // inputs: as the graph's. Throws Error(kInvalidArgument), which names file, node and operator,
  // for an operator that fails.
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs, const RunContext& context) const;
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs, at::Device device) const {
    return run(std::move(inputs), RunContext{.device = device});
  }

  const Graph& graph() const { return *graph_; }
  bool draws() const { return draws_; }

 private:
  struct Step {
    const Node* node;
    Call call;
    std::vector<ValueId> last_uses;
  };
  void run_step(const Step& step, Values& values, const RunContext& context) const;

  std::shared_ptr<const Graph> graph_;
  std::vector<Step> steps_;
  bool draws_ = false;
};

}  // namespace tessera::program
