// SPDX-License-Identifier: MIT
#pragma once
// Work of every operation from its arguments: FLOPs of matrix products, bytes moved of others.
// Causal attention counts the computed half.
#include "lib/core/operation_range.h"
#include "lib/ops/operations.h"

namespace tessera::ops::work {

#define TESSERA_WORK(name) WorkOf<decltype(::tessera::ops::name)>::function name;
template <typename Signature>
struct WorkOf;
template <typename Result, typename... Arguments>
struct WorkOf<Result(Arguments...)> {
  using function = OperationWork(Arguments...);
};
TESSERA_FOR_EACH_OPERATION(TESSERA_WORK)
#undef TESSERA_WORK

}  // namespace tessera::ops::work
