// SPDX-License-Identifier: MIT
#pragma once
// One node, made ready to run: the operator's handle, and where each of its arguments comes from.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lib/program/graph.h"
#include "lib/program/operators.h"
#include "lib/program/own_operator.h"

namespace tessera::program {

using Values = std::vector<c10::IValue>;  // by ValueId

// Makes one argument of the values and the rank's device.
using Source = std::function<c10::IValue(const Values& values, at::Device device)>;

struct ArgumentSource {
  c10::IValue constant;
  ValueId value = kNoValue;  // the argument is this value
  Source make;               // else, unless empty

  void push(std::vector<c10::IValue>& stack, const Values& values, at::Device device) const {
    if (value != kNoValue) {
      stack.push_back(values[static_cast<size_t>(value)]);
    } else {
      stack.push_back(make ? make(values, device) : constant);
    }
  }
};

struct Call {
  std::optional<c10::OperatorHandle> handle;  // none: a function of numbers, or of tessera's own
  const OperatorTraits* traits = nullptr;
  const OwnOperator* own = nullptr;  // of tessera, where a rewrite put it
  std::vector<ArgumentSource> arguments;
};

// Matches the node's arguments with the operator's schema. Throws Error(kDataLoss), which names
// file, node and operator, for one that is missing, unknown, given twice, or of another type.
Call make_call(const Graph& graph, const Node& node);

// Whether the node draws random numbers, as its arguments say.
bool draws(const Graph& graph, const Node& node);

}  // namespace tessera::program
