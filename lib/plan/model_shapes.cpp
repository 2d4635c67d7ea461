#include "tessera/plan/model_shapes.h"

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

std::vector<std::vector<ParameterShape>> model_shapes(const ModelSpec& model, int tensor_ranks,
                                                      int end_ranks) {
  const std::string problem = tensor_parallel_problem(model, tensor_ranks);
  check(problem.empty(), ErrorCode::kInvalidArgument, problem);
  NoCommunication layers(tensor_ranks), ends(end_ranks);
  std::vector<std::vector<ParameterShape>> shapes;
  for (const BlockBuilder& builder : model.blocks) {
    shapes.emplace_back();
    const bool is_end = &builder == &model.blocks.front() || &builder == &model.blocks.back();
    NoCommunication& axis = is_end && end_ranks > 1 ? ends : layers;
    const BuildContext context{.device = at::kMeta, .tensor = axis.size() > 1 ? &axis : nullptr};
    for (const Parameter& parameter : builder.build(context)->parameters()) {
      ParameterShape shape{builder.name + "." + parameter.name, parameter.tensor};
      shape.whole = parameter.placement.shard.replicated();
      for (const TiedParameter& tie : model.tied) {
        const std::string owner = tie.owner_block + "." + tie.owner_parameter;
        if (shape.owner == owner || shape.owner == tie.alias_block + "." + tie.alias_parameter) {
          shape.owner = owner;
          shape.tied = true;
        }
      }
      shapes.back().push_back(shape);
    }
  }
  return shapes;
}

}  // namespace tessera
