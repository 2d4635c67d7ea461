// SPDX-License-Identifier: MIT
#include "tessera/comm/communicator.h"

#include "lib/comm/operation_scope.h"
#include "tessera/core/error.h"

namespace tessera {

const char* name_of(OperationKind kind) {
  constexpr const char* kNames[] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                    "broadcast",  "send",       "recv",           "barrier"};
  return kNames[static_cast<size_t>(kind)];
}

Work Communicator::run(Operation operation) {
  if (!grouping_) return start({&operation, 1});
  check(operation.kind != OperationKind::kBarrier, ErrorCode::kInvalidArgument,
        "barrier: not allowed inside a group");
  if (operation.name.empty()) operation.name = operation_context().label;
  group_.push_back(std::move(operation));
  return Work();
}

void Communicator::begin_group() {
  check(!grouping_, ErrorCode::kInvalidArgument, "begin_group: groups do not nest");
  grouping_ = true;
}

Work Communicator::end_group() {
  check(grouping_, ErrorCode::kInvalidArgument, "end_group: there was no begin_group");
  grouping_ = false;
  std::vector<Operation> operations = std::exchange(group_, {});
  Work work = operations.empty() ? Work() : start(operations);
  operations.clear();
  group_ = std::move(operations);  // kept to reuse its memory for the next group
  return work;
}

}  // namespace tessera
