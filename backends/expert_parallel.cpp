// SPDX-License-Identifier: MIT
#include "backends/expert_parallel.h"

#include <utility>

#include "tessera/comm/communicator.h"
#include "tessera/core/error.h"

namespace tessera {

std::string expert_parallel_problem(const ModelSpec& model, int ranks) {
  if (ranks == 1) return "";
  if (model.expert_divisor == 0) {
    return concat("model ", model.name,
                  " has no experts that ranks can divide: no experts, experts with biases "
                  "(gpt-oss), or an imported program's. Leave the expert axis at 1 "
                  "(--expert_parallel 1)");
  }
  if (model.expert_divisor % ranks == 0) return "";
  return concat("model ", model.name, " has ", model.expert_divisor,
                " experts a layer, which do not divide over an expert axis of ", ranks,
                " ranks; take a divisor (--expert_parallel)");
}

ModelSpec on_expert_axis(ModelSpec model, Communicator& axis) {
  const std::string problem = expert_parallel_problem(model, axis.size());
  check(problem.empty(), ErrorCode::kInvalidArgument, problem);
  for (BlockBuilder& builder : model.blocks) {
    builder.build = [&axis, build = std::move(builder.build)](BuildContext context) {
      context.expert = &axis;
      return build(context);
    };
  }
  return model;
}

}  // namespace tessera
