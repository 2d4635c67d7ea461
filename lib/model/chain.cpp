// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <optional>

#include "lib/model/loss_check.h"
#include "lib/model/loss_sums.h"
#include "lib/model/module_tensors.h"
#include "lib/model/seeded_generators.h"
#include "lib/model/tensor_pack.h"
#include "tessera/core/error.h"
#include "tessera/model/callable.h"

namespace tessera {
namespace {

constexpr const char* kLossName = "loss";

// Block after the last part.
class LossBlock final : public Head {
 public:
  LossBlock(detail::ChainLoss loss, int takes, const ModuleOptions& options, size_t index,
            at::Device device)
      : loss_(std::move(loss)),
        takes_(takes),
        options_(options),
        index_(index),
        device_(device),
        check_(kLossName, options) {}

  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& micro_batch,
                     const BlockContext& context) override {
    const SeededGenerators seeded(device_, block_seed(context.seed, index_));
    detail::Tensors given = given_by(hidden, micro_batch);
    for (at::Tensor& tensor : given) {
      if (tensor.is_floating_point()) tensor = tensor.to(at::kFloat);
    }
    const LossResult result = loss_of(given, micro_batch, context);
    const at::Tensor sums =
        loss_sums(kLossName, result, options_.reduction, options_.counters, micro_batch);
    check_.check(result, micro_batch, [&](const MicroBatch& rows) {
      BlockContext alone = context;
      alone.data_axis = nullptr;  // other ranks do not take part
      detail::Tensors of_rows = given;
      const bool twice = rows.target_count != micro_batch.target_count;
      for (at::Tensor& tensor : of_rows) {
        if (twice && tensor.dim() > 0) tensor = at::cat({tensor, tensor});
      }
      return loss_of(of_rows, rows, alone).loss;
    });
    return sums;
  }
  at::Tensor logits(const at::Tensor& hidden, const MicroBatch& micro_batch,
                    const BlockContext&) override {
    return given_by(hidden, micro_batch).front();
  }
  bool gives_divisor() const override { return true; }
  bool supports_packed_rows() const override { return options_.supports_packed_rows; }
  std::vector<Parameter> parameters() override { return {}; }

 private:
  detail::Tensors given_by(const at::Tensor& hidden, const MicroBatch& micro_batch) {
    if (takes_ == 1) return {hidden};
    return unpack_(hidden, micro_batch);
  }
  LossResult loss_of(const detail::Tensors& given, MicroBatch rows,
                     const BlockContext& context) const {
    if (rows.labels.defined() && rows.labels.is_floating_point()) {
      rows.labels = rows.labels.to(at::kFloat);
    }
    LossResult result;
    run_users_code(kLossName, "the loss", [&] { result = loss_(given, rows, context); });
    return result;
  }

  detail::ChainLoss loss_;
  int takes_;
  ModuleOptions options_;
  size_t index_;
  at::Device device_;
  LossCheck check_;
  Unpacking unpack_;
};

// A part's tensors in the chain's source.
class PartSource final : public TensorSource {
 public:
  PartSource(const TensorSource& source, std::string prefix)
      : source_(source), prefix_(std::move(prefix)) {}
  bool has(const std::string& name) const override { return source_.has(prefix_ + name); }
  at::Tensor read(const std::string& name, at::IntArrayRef shape) const override {
    return source_.read(prefix_ + name, shape);
  }

 private:
  const TensorSource& source_;
  std::string prefix_;
};

std::string tensors(int count) { return concat(count, count == 1 ? " tensor" : " tensors"); }

void check_fits(const ModelSpec& model) {
  for (size_t i = 1; i < model.block_count(); ++i) {
    const BlockBuilder &before = model.blocks[i - 1], &block = model.blocks[i];
    check(before.gives == block.takes, ErrorCode::kInvalidArgument, "block ", before.name,
          " returns ", tensors(before.gives), ", but block ", block.name, " takes ",
          tensors(block.takes));
  }
}

// Appends the part's blocks, named by their index in the chain.
void append(ModelSpec& chain, const ModelSpec& part, const std::string& number) {
  const bool one = part.block_count() == 1;
  const auto named = [&](const std::string& block) { return one ? number : number + "." + block; };
  for (const BlockBuilder& block : part.blocks) {
    BlockBuilder& added = chain.blocks.emplace_back(block);
    added.name = named(block.name);
    added.build = [build = block.build, name = added.name, index = chain.blocks.size() - 1,
                   prefix = number + "."](const BuildContext& context) {
      BuildContext of_part = context;
      of_part.chained_as = name;
      of_part.chained_index = index;
      std::optional<PartSource> source;
      if (context.source != nullptr) of_part.source = &source.emplace(*context.source, prefix);
      return build(of_part);
    };
  }
  for (TiedParameter tie : part.tied) {
    tie.owner_block = named(tie.owner_block);
    tie.alias_block = named(tie.alias_block);
    chain.tied.push_back(std::move(tie));
  }
}

}  // namespace

ModelSpec detail::chain_of(std::vector<ModelSpec> parts) {
  check(!parts.empty(), ErrorCode::kInvalidArgument, "chain: there are no parts");
  ModelSpec spec;
  spec.name = "chain";
  spec.has_loss = false;
  // of each block: part, and name there
  std::map<std::string, std::pair<size_t, std::string>> places;
  for (size_t i = 0; i < parts.size(); ++i) {
    check(!parts[i].has_loss, ErrorCode::kInvalidArgument, "chain: part ", i,
          " returns a loss; the loss of a chain is given to chain(), and its parts are made by "
          "block_of(module)");
    const size_t first = spec.block_count();
    append(spec, parts[i], std::to_string(i));
    for (size_t b = first; b < spec.block_count(); ++b) {
      places[spec.blocks[b].name] = {i, parts[i].blocks[b - first].name};
    }
  }
  spec.checkpoint_name = [parts = std::move(parts), places](const std::string& block,
                                                            const std::string& parameter) {
    const auto place = places.find(block);
    if (place == places.end()) return block + "." + parameter;
    const auto& [part, name] = place->second;
    return std::to_string(part) + "." + parts[part].stored_name(name, parameter);
  };
  return spec;
}

ModelSpec detail::with_loss(ModelSpec model, ChainLoss loss, int takes,
                            const ModuleOptions& options) {
  const BlockBuilder &front = model.blocks.front(), &back = model.blocks.back();
  check(front.takes <= 1, ErrorCode::kInvalidArgument, "block ", front.name,
        " is the first and takes ", tensors(front.takes),
        "; it may take micro_batch.input_ids, or only the micro-batch");
  check_fits(model);
  check(back.gives == takes, ErrorCode::kInvalidArgument, "block ", back.name, " returns ",
        tensors(back.gives), ", but the loss takes ", tensors(takes));
  BlockBuilder last{.name = kLossName, .gives = 0};
  last.build = [loss = std::move(loss), takes, options,
                index = model.block_count()](const BuildContext& context) {
    return std::make_unique<LossBlock>(loss, takes, options, index, context.device);
  };
  model.blocks.push_back(std::move(last));
  model.has_loss = true;
  return model;
}

namespace {

struct ParameterName {
  size_t block;
  std::string name;
};

ParameterName find_parameter(const ModelSpec& model, const std::string& name) {
  for (size_t i = 0; i < model.block_count(); ++i) {
    const std::string prefix = model.blocks[i].name + ".";
    if (name.starts_with(prefix)) return {i, name.substr(prefix.size())};
  }
  std::string blocks;
  for (const BlockBuilder& block : model.blocks) {
    blocks += concat(blocks.empty() ? "" : ", ", "\"", block.name, "\"");
  }
  fail(ErrorCode::kInvalidArgument, "tie: \"", name,
       "\" is no parameter; expected \"block.parameter\", of the blocks ", blocks);
}

}  // namespace

ModelSpec tie(ModelSpec model, const std::string& owner, const std::string& alias) {
  const ParameterName of_owner = find_parameter(model, owner);
  const ParameterName of_alias = find_parameter(model, alias);
  check(of_owner.block != of_alias.block, ErrorCode::kInvalidArgument, "tie: \"", owner,
        "\" and \"", alias, "\" are of one block; tie them inside its module");
  model.tied.push_back({model.blocks[of_owner.block].name, of_owner.name,
                        model.blocks[of_alias.block].name, of_alias.name});
  BlockBuilder& builder = model.blocks[of_alias.block];
  builder.build = [build = std::move(builder.build), name = of_alias.name,
                   block_name = builder.name](const BuildContext& context) {
    auto block = build(context);
    for (const Parameter& parameter : block->parameters()) {
      if (parameter.name != name) continue;
      const at::Tensor& tensor = parameter.tensor;
      tensor.set_data(at::zeros({1}, tensor.options().requires_grad(false)).expand(tensor.sizes()));
    }
    return block;
  };
  return model;
}

}  // namespace tessera
