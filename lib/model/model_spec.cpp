// SPDX-License-Identifier: MIT
#include "tessera/model/model_spec.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tessera/core/error.h"

namespace tessera {

uint64_t block_seed(uint64_t seed, size_t block_index) {
  // SplitMix64 of the pair (Steele, Lea, Flood 2014): neighbouring inputs give unrelated outputs.
  uint64_t x = seed * 0x9E3779B97F4A7C15ull + static_cast<uint64_t>(block_index) + 1;
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

std::vector<Parameter> BlockBuilder::parameters_of(Block& built) const {
  std::vector<Parameter> parameters = built.parameters();
  if (revise) std::ranges::for_each(parameters, revise);
  return parameters;
}

ModelSpec ModelSpec::subset(const std::vector<size_t>& indices) const {
  check(!indices.empty(), ErrorCode::kInvalidArgument, "model ", name, ": a part without blocks");
  ModelSpec part = *this;
  part.blocks.clear();
  std::set<std::string> inside;
  for (size_t index : indices) {
    check(index < blocks.size(), ErrorCode::kInvalidArgument, "model ", name, ": block ", index,
          " of ", blocks.size());
    part.blocks.push_back(blocks[index]);
    inside.insert(blocks[index].name);
  }
  part.has_loss = has_loss && indices.back() + 1 == blocks.size();
  std::erase_if(part.tied, [&](const TiedParameter& tie) {
    return !inside.contains(tie.owner_block) || !inside.contains(tie.alias_block);
  });
  return part;
}

ModelSpec ModelSpec::slice(size_t first, size_t count) const {
  check(count > 0 && first + count <= blocks.size(), ErrorCode::kInvalidArgument, "model ", name,
        ": slice of ", count, " blocks from ", first, " does not fit ", blocks.size(), " blocks");
  std::vector<size_t> indices(count);
  std::iota(indices.begin(), indices.end(), first);
  return subset(indices);
}

ModelSpec freeze(ModelSpec model,
                 std::function<bool(const std::string&, const std::string&)> frozen) {
  for (BlockBuilder& builder : model.blocks) {
    builder.build = [build = std::move(builder.build), name = builder.name,
                     frozen](const BuildContext& context) {
      auto block = build(context);
      for (const Parameter& parameter : block->parameters()) {
        if (frozen(name, parameter.name)) parameter.tensor.set_requires_grad(false);
      }
      return block;
    };
  }
  return model;
}

int64_t ParameterInfo::numel() const { return c10::multiply_integers(shape); }

std::vector<ParameterInfo> parameters_of(const ModelSpec& model) {
  std::vector<ParameterInfo> shapes;
  for (const BlockBuilder& builder : model.blocks) {
    const bool module = builder.from_first_rank;  // torch modules are built on the CPU anyway
    const auto block = builder.build({.device = module ? at::kCPU : at::kMeta});
    for (const Parameter& parameter : block->parameters()) {
      const bool alias = std::ranges::any_of(model.tied, [&](const TiedParameter& tie) {
        return tie.alias_block == builder.name && tie.alias_parameter == parameter.name;
      });
      shapes.push_back({builder.name, parameter.name, parameter.tensor.sizes().vec(),
                        parameter.tensor.requires_grad(), alias});
    }
  }
  return shapes;
}

ParameterCount parameter_count(const ModelSpec& model) {
  ParameterCount count;
  for (const ParameterInfo& parameter : parameters_of(model)) {
    if (parameter.alias) continue;
    count.all += parameter.numel();
    if (parameter.trained) count.trained += parameter.numel();
  }
  return count;
}

at::Tensor tied_placeholder(at::IntArrayRef shape, at::Device device) {
  if (device.is_meta()) {
    return at::empty(shape, at::TensorOptions(at::kFloat).device(device)).set_requires_grad(true);
  }
  return at::zeros({1}).expand(shape).detach().set_requires_grad(true);
}

}  // namespace tessera
