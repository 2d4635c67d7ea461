// SPDX-License-Identifier: MIT
#include "tessera/model/adapters.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <map>
#include <set>

#include "lib/model/module_block.h"
#include "lib/model/module_snapshot.h"
#include "lib/model/module_tensors.h"
#include "lib/model/seeded_generators.h"
#include "tessera/core/error.h"
#include "tessera/model/callable.h"

namespace tessera {
namespace {

// Finds tensors with several names, in one block or across blocks.
class TieFinder {
 public:
  TieFinder(ModelSpec& model, const torch::nn::Module& root)
      : model_(model), root_(root), tables_(tables_of(root)) {}

  // Records the block's aliases of other tensors, and parameters that are embeddings anywhere.
  void add(ModuleBlockInfo& info, const torch::nn::Module& module) {
    memory_.add(info.block, module, root_);
    for (const auto& [name, tensor] : used_parameters(module, root_)) {
      const at::TensorImpl* key = tensor.unsafeGetTensorImpl();
      if (tables_.contains(key)) info.tables.insert(name);
      const auto [owner, first] = owners_.try_emplace(key, info.block, name);
      if (first) continue;
      info.aliases.insert(name);
      model_.tied.push_back({owner->second.first, owner->second.second, info.block, name});
    }
  }
  // Called after all blocks: throws for shared memory that cannot stay tied.
  void check() const { memory_.check(); }

 private:
  ModelSpec& model_;
  const torch::nn::Module& root_;
  const std::set<const at::TensorImpl*> tables_;
  MemoryMap memory_;
  std::map<const at::TensorImpl*, std::pair<std::string, std::string>> owners_;
};

using Children = std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>;

// Two blocks would each advance their own statistics.
void check_statistics_stand_once(const Children& children, bool training) {
  std::map<const torch::nn::Module*, std::string> seen;
  for (const auto& [name, child] : children) {
    for (const auto& part : child->modules()) {
      const auto [first, inserted] = seen.try_emplace(part.get(), name);
      const bool stays = training && !part->is_training();
      check(inserted || first->second == name || stays ||
                !part->named_buffers(/*recurse=*/false).contains("running_mean"),
            ErrorCode::kInvalidArgument, "blocks ", first->second, " and ", name,
            " share a module with running statistics, which only one block can advance; give each "
            "its own");
    }
  }
}

// Origin of a block: a copy of `module`, a part of `root`; null: made by a function.
struct Original {
  std::shared_ptr<const torch::nn::Module> module = nullptr;
  std::shared_ptr<const torch::nn::Module> root = nullptr;
  const char* maker = "clone()";
};

detail::CallableModule copy_of(const Original& original, const std::string& block,
                               const std::function<detail::CallableModule()>& clone) {
  const ModuleSnapshot before(block, original.maker, *original.module, *original.root);
  detail::CallableModule copy;
  try {
    run_users_code(block, original.maker, [&] { copy = clone(); });
  } catch (const Error& error) {
    if (original.maker != std::string("clone()")) throw;
    fail(error.code(), error.what(),
         " Or give with_values(make, module) in place of the module: make() returns a new one.");
  }
  check(copy.module != nullptr, ErrorCode::kInvalidArgument, "block ", block, ": ", original.maker,
        " returned no module");
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

// make: the user's function, or a clone of the original.
BlockBuilder builder_of(ModuleBlockInfo info, std::function<detail::CallableModule()> make,
                        Original original) {
  BlockBuilder builder;
  builder.name = info.block;
  builder.from_first_rank = true;
  builder.takes = info.takes;
  builder.gives = info.gives;
  builder.build = [own_info = std::move(info), make = std::move(make),
                   original = std::move(original),
                   returned = std::make_shared<ReturnedTensors>()](const BuildContext& context) {
    ModuleBlockInfo info = own_info;
    if (!context.chained_as.empty()) {
      info.block = context.chained_as;
      info.index = context.chained_index;
    }
    auto callable = [&] {  // clone() draws, too
      const SeededGenerators seeded(context.device, block_seed(context.seed, info.index));
      return original.module != nullptr ? copy_of(original, info.block, make)
                                        : made_anew(*returned, info.block, make);
    }();
    const bool keep_eval =
        original.root != nullptr ? original.root->is_training() : callable.module->is_training();
    return std::make_unique<ModuleBlock>(std::move(info), std::move(callable), keep_eval, context);
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

ModelSpec detail::model_of_one_block(ModuleSource source, LossFunction loss,
                                     const ModuleOptions& options, int takes, int gives) {
  check_options(options);
  check(loss == nullptr || options.counters == 0 || options.reduction != LossReduction::kNone,
        ErrorCode::kInvalidArgument,
        "a loss of LossReduction::kNone has no counters behind it; return a LossResult "
        "(from_callable, "
        "chain)");
  ModelSpec spec;
  spec.name = "module";
  spec.checkpoint_name = [](const std::string&, const std::string& parameter) { return parameter; };
  spec.has_loss = gives == 0;
  ModuleBlockInfo info{.block = "module",
                       .loss = std::move(loss),
                       .options = options,
                       .takes = takes,
                       .gives = gives};
  const auto& original = source.original;
  if (original != nullptr) {
    TieFinder ties(spec, *original);
    ties.add(info, *original);
    ties.check();
  }
  spec.blocks.push_back(
      builder_of(std::move(info), std::move(source.make), {original, original, source.maker}));
  return spec;
}

ModelSpec from_sequential(std::shared_ptr<torch::nn::SequentialImpl> sequential, LossFunction loss,
                          const ModuleOptions& options) {
  check(!sequential->is_empty(), ErrorCode::kInvalidArgument,
        "from_sequential: the Sequential has no modules");
  check_options(options);
  ModelSpec spec;
  spec.name = "sequential";
  spec.has_loss = loss != nullptr;
  TieFinder ties(spec, *sequential);
  const auto children = sequential->named_children().pairs();
  check_statistics_stand_once(children, sequential->is_training());
  for (size_t i = 0; i < children.size(); ++i) {
    const auto& [name, original] = children[i];
    ModuleBlockInfo info{.block = name,
                         .index = i,
                         .checkpoint_prefix = name + ".",
                         .loss = i + 1 == children.size() ? loss : nullptr,
                         .options = options,
                         .gives = i + 1 == children.size() && loss != nullptr ? 0 : 1};
    ties.add(info, *original);
    auto make = [sequential, i]() -> detail::CallableModule {
      const torch::nn::AnyModule& module = *(sequential->begin() + static_cast<ptrdiff_t>(i));
      auto child = std::make_shared<torch::nn::AnyModule>(module.clone());
      return {child->ptr(),
              [child](const detail::Tensors& given, const MicroBatch&, const BlockContext&) {
                return detail::Tensors{child->forward(given.front())};
              },
              nullptr, /*sees_micro_batch=*/false};
    };
    spec.blocks.push_back(builder_of(std::move(info), std::move(make), {original, sequential}));
  }
  ties.check();
  return spec;
}

namespace {

Children named(const torch::nn::Module& root, const std::vector<std::string>& names) {
  const auto modules = root.named_modules();
  Children children;
  for (const std::string& name : names) {
    const auto* child = modules.find(name);
    check(child != nullptr && !name.empty(), ErrorCode::kInvalidArgument, "from_children: module ",
          root.name(), " has no child \"", name, "\"");
    children.emplace_back(name, *child);
  }
  return children;
}

// Parameters of the module that are in none of its children would not be trained.
void check_children_have_all(const torch::nn::Module& root, const Children& children) {
  std::set<const at::TensorImpl*> theirs;
  for (const auto& child : children) {
    for (const auto& used : used_parameters(*child.second, root)) {
      theirs.insert(used.tensor.unsafeGetTensorImpl());
    }
  }
  for (const auto& [name, tensor] : used_parameters(root, root)) {
    check(theirs.contains(tensor.unsafeGetTensorImpl()), ErrorCode::kInvalidArgument,
          "from_children: parameter \"", name, "\" of module ", root.name(),
          " belongs to none of the named children; make it a parameter of one of them, or give the "
          "blocks with chain()");
  }
}

}  // namespace

ModelSpec detail::children_of(const ModuleSource& source, const std::vector<std::string>& names,
                              const ChildFinder& find, const ModuleOptions& options) {
  check_options(options);
  check(!names.empty(), ErrorCode::kInvalidArgument, "from_children: there are no names");
  const auto& root = source.original;
  const Children children = named(*root, names);
  check_statistics_stand_once(children, root->is_training());
  check_children_have_all(*root, children);
  ModelSpec spec;
  spec.name = "module";
  spec.has_loss = false;
  TieFinder ties(spec, *root);
  for (size_t i = 0; i < children.size(); ++i) {
    const auto& [name, original] = children[i];
    const Child call = find(original);
    check(call.takes >= 0, ErrorCode::kInvalidArgument, "from_children: child \"", name, "\" is a ",
          original->name(), ", whose forward() is not known; name its class, from_children<Class>(",
          "...), or give the blocks with chain()");
    ModuleBlockInfo info{.block = name,
                         .index = i,
                         .checkpoint_prefix = name + ".",
                         .options = options,
                         .takes = call.takes,
                         .gives = call.gives};
    ties.add(info, *original);
    auto make = [make = source.make, name = name, find]() -> CallableModule {
      const CallableModule made = make();
      if (made.module == nullptr) return {};
      return find(named(*made.module, {name}).front().second).callable;
    };
    spec.blocks.push_back(
        builder_of(std::move(info), std::move(make), {original, root, source.maker}));
  }
  ties.check();
  return spec;
}

}  // namespace tessera
