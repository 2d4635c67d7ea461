#include "tessera/plan/model_shapes.h"

#include <set>

#include "tessera/comm/communicator.h"
#include "tessera/core/error.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera {
namespace {

// The first rank of an axis, for builders that only ask for rank and size.
class NoCommunication : public Communicator {
 public:
  explicit NoCommunication(int size) : size_(size) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  at::Device device() const override { return at::kMeta; }
  std::string transport() const override { return "none"; }
  Work all_reduce(const at::Tensor&, ReduceOp) override { refuse(); }
  Work all_gather(const at::Tensor&, const at::Tensor&) override { refuse(); }
  Work reduce_scatter(const at::Tensor&, const at::Tensor&, ReduceOp) override { refuse(); }
  Work broadcast(const at::Tensor&, int) override { refuse(); }
  Work send(const at::Tensor&, int) override { refuse(); }
  Work recv(const at::Tensor&, int) override { refuse(); }
  void barrier() override { refuse(); }
  void begin_group() override { refuse(); }
  Work end_group() override { refuse(); }
  std::unique_ptr<Communicator> split(int, int) override { refuse(); }
  void abort(const std::string&) override {}
  int64_t bytes_sent() const override { return 0; }

 private:
  [[noreturn]] static void refuse() {
    fail(ErrorCode::kInternal, "a block communicates while it is built");
  }
  int size_;
};

}  // namespace

ModelShapes model_shapes(const ModelSpec& model, const ShapeAxes& axes) {
  const std::string problem = tensor_parallel_problem(model, axes.tensor);
  check(problem.empty(), ErrorCode::kInvalidArgument, problem);
  const auto layers = std::make_shared<NoCommunication>(axes.tensor);
  const auto ends =
      axes.ends == axes.tensor ? layers : std::make_shared<NoCommunication>(axes.ends);
  ModelShapes shapes{.axes = {layers, ends}};
  std::set<std::string> frozen;  // owners
  for (const BlockBuilder& builder : model.blocks) {
    shapes.blocks.emplace_back();
    const bool is_end = &builder == &model.blocks.front() || &builder == &model.blocks.back();
    const auto& axis = is_end ? ends : layers;
    const BuildContext context{.device = at::kMeta,
                               .tensor = axis->size() > 1 ? axis.get() : nullptr,
                               .sequence_parallel = axes.sequence_parallel};
    for (const Parameter& parameter : builder.build(context)->parameters()) {
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
