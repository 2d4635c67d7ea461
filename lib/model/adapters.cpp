#include "tessera/model/adapters.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <map>

#include "lib/model/module_block.h"
#include "lib/model/module_snapshot.h"
#include "lib/model/module_tensors.h"
#include "lib/model/seeded_generators.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

// Finds tensors that are used under several names, in one block or in several.
class TieFinder {
 public:
  TieFinder(ModelSpec& model, const torch::nn::Module& root) : model_(model), root_(root) {}

  // Returns the block's names of parameters that come from elsewhere.
  std::set<std::string> add(const std::string& block, const torch::nn::Module& module) {
    memory_.add(block, module, root_);
    std::set<std::string> aliases;
    for (const auto& [name, tensor] : used_parameters(module, root_)) {
      const auto [owner, first] = owners_.try_emplace(tensor.unsafeGetTensorImpl(), block, name);
      if (first) continue;
      aliases.insert(name);
      model_.tied.push_back({owner->second.first, owner->second.second, block, name});
    }
    return aliases;
  }
  // Once all blocks are there: what is tied, but not so that it can be kept.
  void check() const { memory_.check(); }

 private:
  ModelSpec& model_;
  const torch::nn::Module& root_;
  MemoryMap memory_;
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

// What a block is made from: a copy of `module`, which is part of `root`; null: made anew.
struct Original {
  std::shared_ptr<const torch::nn::Module> module = nullptr;
  std::shared_ptr<const torch::nn::Module> root = nullptr;
};

detail::CallableModule copy_of(const Original& original, const std::string& block,
                               const std::function<detail::CallableModule()>& clone) {
  const ModuleSnapshot before(block, *original.module, *original.root);
  detail::CallableModule copy;
  run_users_code(block, "clone()", [&] { copy = clone(); });
  check(copy.module != nullptr, ErrorCode::kInternal, "block ", block, ": no copy");
  before.complete(*copy.module);
  return copy;
}

detail::CallableModule made_anew(ReturnedTensors& returned, const std::string& block,
                                 const std::function<detail::CallableModule()>& make) {
  detail::CallableModule made;
  run_users_code(block, "the function that makes the module", [&] { made = make(); });
  check(made.module != nullptr, ErrorCode::kInvalidArgument, "block ", block,
        ": the function that makes the module returned none");
  returned.add(block, *made.module);
  MemoryMap memory;
  memory.add(block, *made.module, *made.module);
  memory.check();
  return made;
}

// make: the user's function, or clones the original.
BlockBuilder builder_of(ModulePlace place, std::function<detail::CallableModule()> make,
                        Original original) {
  BlockBuilder builder;
  builder.name = place.block;
  builder.from_first_rank = true;
  builder.build = [place = std::move(place), make = std::move(make), original = std::move(original),
                   returned = std::make_shared<ReturnedTensors>()](const BuildContext& context) {
    auto callable = [&] {  // also clone() draws
      const SeededGenerators seeded(context.device, block_seed(context.seed, place.index));
      return original.module != nullptr ? copy_of(original, place.block, make)
                                        : made_anew(*returned, place.block, make);
    }();
    const bool keep_eval =
        original.root != nullptr ? original.root->is_training() : callable.module->is_training();
    return std::make_unique<ModuleBlock>(place, std::move(callable), keep_eval, context);
  };
  return builder;
}

void check_options(const ModuleOptions& options) {
  check(options.running_statistics_of_rank.value_or(0) >= 0, ErrorCode::kInvalidArgument,
        "running_statistics_of_rank is ", options.running_statistics_of_rank.value_or(0),
        "; expected a rank of the data axis");
  check(options.counters >= 0, ErrorCode::kInvalidArgument, "counters is ", options.counters,
        "; expected how many follow the loss");
}

}  // namespace

ModelSpec detail::model_of_one_block(std::function<CallableModule()> make,
                                     std::shared_ptr<const torch::nn::Module> original,
                                     LossFunction loss, const ModuleOptions& options) {
  check_options(options);
  ModelSpec spec;
  spec.name = "module";
  spec.checkpoint_name = [](const std::string&, const std::string& parameter) { return parameter; };
  ModulePlace place{.block = "module", .loss = std::move(loss), .options = options};
  if (original != nullptr) {
    TieFinder ties(spec, *original);
    place.aliases = ties.add(place.block, *original);
    ties.check();
  }
  spec.blocks.push_back(builder_of(std::move(place), std::move(make), {original, original}));
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
  TieFinder ties(spec, *sequential);
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
      return {child->ptr(), [child](const at::Tensor& input) { return child->forward(input); }};
    };
    spec.blocks.push_back(
        builder_of(std::move(place), std::move(make), {children[i].value(), sequential}));
  }
  ties.check();
  return spec;
}

}  // namespace tessera
