// SPDX-License-Identifier: MIT
#include "lib/plan/model_shapes.h"

#include <set>

#include "lib/plan/silent_communicator.h"
#include "tessera/core/error.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera {
ModelShapes model_shapes(const ModelSpec& model, const ShapeAxes& axes) {
  const std::string problem = tensor_parallel_problem(model, axes.tensor);
  check(problem.empty(), ErrorCode::kInvalidArgument, problem);
  const auto layers = std::make_shared<SilentCommunicator>(axes.tensor);
  const auto ends =
      axes.ends == axes.tensor ? layers : std::make_shared<SilentCommunicator>(axes.ends);
  ModelShapes shapes{.axes = {layers, ends}};
  std::set<std::string> frozen;  // owners
  for (const BlockBuilder& builder : model.blocks) {
    shapes.blocks.emplace_back();
    const bool is_end = &builder == &model.blocks.front() || &builder == &model.blocks.back();
    const auto& axis = is_end ? ends : layers;
    const BuildContext context{.device = at::kMeta,
                               .tensor = axis->size() > 1 ? axis.get() : nullptr,
                               .sequence_parallel = axes.sequence_parallel};
    const auto block = builder.build(context);
    for (const Parameter& parameter : builder.parameters_of(*block)) {
      const std::string name = builder.name + "." + parameter.name;
      ParameterShape shape{name, parameter};
      if (!parameter.tensor.requires_grad()) frozen.insert(name);
      for (const TiedParameter& tie : model.tied) {
        const std::string owner = tie.owner_block + "." + tie.owner_parameter;
        if (name == owner || name == tie.alias_block + "." + tie.alias_parameter) {
          shape.owner = owner;
          shape.tied = true;
        }
      }
      shapes.blocks.back().push_back(shape);
    }
  }
  for (auto& block : shapes.blocks) {
    for (ParameterShape& shape : block) {
      shape.parameter.placement.frozen = frozen.contains(shape.owner);
    }
  }
  return shapes;
}

}  // namespace tessera
