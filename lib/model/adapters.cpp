#include "tessera/model/adapters.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <map>

#include "lib/model/module_block.h"
#include "lib/model/seeded_generators.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

// Finds tensors that are registered under several names, in one block or in several.
class TieFinder {
 public:
  explicit TieFinder(ModelSpec& model) : model_(model) {}

  // Returns the block's names of parameters that come from elsewhere.
  std::set<std::string> add(const std::string& block, const torch::nn::Module& module) {
    std::set<std::string> aliases;
    for (const auto& item : module.named_parameters()) {
      const auto [owner, first] =
          owners_.try_emplace(item.value().unsafeGetTensorImpl(), block, item.key());
      if (first) continue;
      aliases.insert(item.key());
      model_.tied.push_back({owner->second.first, owner->second.second, block, item.key()});
    }
    return aliases;
  }

 private:
  ModelSpec& model_;
  std::map<const at::TensorImpl*, std::pair<std::string, std::string>> owners_;
};

// Two blocks would each advance statistics of their own.
void check_statistics_stand_once(const torch::nn::SequentialImpl& sequential) {
  std::map<const torch::nn::Module*, std::string> seen;
  for (const auto& child : sequential.named_children()) {
    for (const auto& part : child.value()->modules()) {
      const auto [first, inserted] = seen.try_emplace(part.get(), child.key());
      const bool stays = sequential.is_training() && !part->is_training();
      check(inserted || first->second == child.key() || stays ||
                !part->named_buffers(/*recurse=*/false).contains("running_mean"),
            ErrorCode::kInvalidArgument, "blocks ", first->second, " and ", child.key(),
            " share a module with running statistics, which only one block can advance; give each "
            "its own");
    }
  }
}

BlockBuilder builder_of(ModulePlace place, std::function<detail::CallableModule()> make,
                        std::function<bool()> keep_eval) {
  BlockBuilder builder;
  builder.name = place.block;
  builder.from_first_rank = true;
  builder.build = [place = std::move(place), make = std::move(make),
                   keep_eval = std::move(keep_eval)](const BuildContext& context) {
    auto callable = [&] {  // also clone() draws
      const SeededGenerators seeded(context.device, block_seed(context.seed, place.index));
      return make();
    }();
    const bool keep = keep_eval ? keep_eval() : callable.module->is_training();
    return std::make_unique<ModuleBlock>(place, std::move(callable), keep, context);
  };
  return builder;
}

void check_options(const ModuleOptions& options) {
  check(options.running_statistics_of_rank.value_or(0) >= 0, ErrorCode::kInvalidArgument,
        "running_statistics_of_rank is ", options.running_statistics_of_rank.value_or(0),
        "; expected a rank of the data axis");
}

}  // namespace

void detail::copy_gradient_flags(const torch::nn::Module& original, torch::nn::Module& copy) {
  auto parameters = copy.named_parameters();
  for (const auto& item : original.named_parameters()) {
    parameters[item.key()].set_requires_grad(item.value().requires_grad());
  }
}

ModelSpec detail::model_of_one_block(std::function<CallableModule()> make,
                                     std::shared_ptr<const torch::nn::Module> original,
                                     LossFunction loss, const ModuleOptions& options) {
  check_options(options);
  ModelSpec spec;
  spec.name = "module";
  spec.checkpoint_name = [](const std::string&, const std::string& parameter) { return parameter; };
  ModulePlace place{.block = "module", .loss = std::move(loss), .options = options};
  if (original != nullptr) place.aliases = TieFinder(spec).add(place.block, *original);
  spec.blocks.push_back(builder_of(std::move(place), std::move(make), nullptr));
  return spec;
}

ModelSpec from_sequential(std::shared_ptr<torch::nn::SequentialImpl> sequential, LossFunction loss,
                          const ModuleOptions& options) {
  check(!sequential->is_empty(), ErrorCode::kInvalidArgument,
        "from_sequential: the Sequential has no modules");
  check_options(options);
  check_statistics_stand_once(*sequential);
  ModelSpec spec;
  spec.name = "sequential";
  TieFinder ties(spec);
  const auto children = sequential->named_children();
  for (size_t i = 0; i < children.size(); ++i) {
    const std::string& name = children[i].key();
    ModulePlace place{.block = name,
                      .index = i,
                      .checkpoint_prefix = name + ".",
                      .aliases = ties.add(name, *children[i].value()),
                      .loss = i + 1 == children.size() ? loss : nullptr,
                      .options = options};
    auto make = [sequential, i]() -> detail::CallableModule {
      const torch::nn::AnyModule& original = *(sequential->begin() + static_cast<ptrdiff_t>(i));
      auto child = std::make_shared<torch::nn::AnyModule>(original.clone());
      detail::copy_gradient_flags(*original.ptr(), *child->ptr());
      return {child->ptr(), [child](const at::Tensor& input) { return child->forward(input); }};
    };
    spec.blocks.push_back(builder_of(std::move(place), std::move(make),
                                     [sequential] { return sequential->is_training(); }));
  }
  return spec;
}

}  // namespace tessera
