#include "tessera/model/adapters.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <mutex>

#include "tessera/core/error.h"

namespace tessera {
namespace {

// One torch module, or one child of a Sequential.
class ModuleBlock final : public Block {
 public:
  ModuleBlock(const std::string& name, detail::CallableModule callable, LossFunction loss,
              const BuildContext& context, const std::string& checkpoint_prefix)
      : callable_(std::move(callable)), loss_(std::move(loss)) {
    torch::nn::Module& module = *callable_.module;
    const auto buffers = module.named_buffers();
    check(buffers.is_empty(), ErrorCode::kInvalidArgument, "block ", name, " has the buffer \"",
          buffers.is_empty() ? "" : buffers.begin()->key(),
          "\", which no strategy would synchronise or save; use a layer without buffers (LayerNorm "
          "or GroupNorm instead of BatchNorm), or keep a constant as a plain member");
    module.to(context.device, at::kFloat);
    for (const auto& item : module.named_parameters()) {
      const at::Tensor& tensor = item.value();
      check(tensor.requires_grad(), ErrorCode::kInvalidArgument, "block ", name, ": parameter \"",
            item.key(),
            "\" does not require a gradient; frozen parameters are not supported, keep "
            "the constant as a plain member");
      if (context.source != nullptr) {
        const at::NoGradGuard no_grad;
        tensor.copy_(context.source->read(checkpoint_prefix + item.key(), tensor.sizes()));
      }
      parameters_.push_back({item.key(), tensor, tensor.dim() >= 2});
    }
  }

  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& micro_batch) override {
    at::Tensor input = hidden.defined() ? hidden : micro_batch.input_ids;
    if (input.is_floating_point() && !parameters_.empty()) {
      input = input.to(parameters_.front().tensor.scalar_type());
    }
    const bool training = at::GradMode::is_enabled();
    if (callable_.module->is_training() != training) callable_.module->train(training);
    const at::Tensor output = callable_.forward(input);
    if (!loss_) return output;
    return loss_(output.to(at::kFloat), micro_batch).to(at::kFloat).reshape({-1});
  }
  std::vector<Parameter> parameters() override { return parameters_; }

 private:
  detail::CallableModule callable_;
  LossFunction loss_;  // empty unless the block is the last one
  std::vector<Parameter> parameters_;
};

// Runs make() with the default CPU generator seeded, and puts the generator's state back. One
// thread at a time: all ranks of a process share it.
template <typename Make>
auto with_default_seed(uint64_t seed, const Make& make) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> one_at_a_time(mutex);
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Generator saved = generator.clone();
  generator.set_current_seed(seed);
  struct Restore {
    at::Generator& generator;
    const at::Generator& saved;
    ~Restore() { generator.set_state(saved.get_state()); }
  } restore{generator, saved};
  return make();
}

}  // namespace

ModelSpec detail::model_of_one_block(std::function<CallableModule()> make, LossFunction loss) {
  ModelSpec spec;
  spec.name = "module";
  spec.checkpoint_name = [](const std::string&, const std::string& parameter) { return parameter; };
  spec.blocks.push_back({"module", [make, loss](const BuildContext& context) {
                           auto callable = with_default_seed(block_seed(context.seed, 0), make);
                           return std::make_unique<ModuleBlock>("module", std::move(callable), loss,
                                                                context, "");
                         }});
  return spec;
}

ModelSpec from_sequential(std::shared_ptr<torch::nn::SequentialImpl> sequential,
                          LossFunction loss) {
  check(!sequential->is_empty(), ErrorCode::kInvalidArgument,
        "from_sequential: the Sequential has no modules");
  ModelSpec spec;
  spec.name = "sequential";
  const auto names = sequential->named_children().keys();
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string& name = names[i];
    const LossFunction loss_here = i + 1 == names.size() ? loss : nullptr;
    spec.blocks.push_back(
        {name, [sequential, i, name, loss_here](const BuildContext& context) {
           auto child = std::make_shared<torch::nn::AnyModule>(
               (sequential->begin() + static_cast<ptrdiff_t>(i))->clone());
           detail::CallableModule callable{
               child->ptr(), [child](const at::Tensor& input) { return child->forward(input); }};
           return std::make_unique<ModuleBlock>(name, std::move(callable), loss_here, context,
                                                name + ".");
         }});
  }
  return spec;
}

}  // namespace tessera
