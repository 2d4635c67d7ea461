#include "tessera/model/model_spec.h"

#include <ATen/ATen.h>

#include <numeric>
#include <set>

#include "tessera/core/error.h"

namespace tessera {

uint64_t block_seed(uint64_t seed, size_t block_index) {
  // splitmix64 of the pair (Steele, Lea, Flood 2014): neighbouring inputs give unrelated outputs.
  uint64_t x = seed * 0x9E3779B97F4A7C15ull + static_cast<uint64_t>(block_index) + 1;
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
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

at::Tensor tied_placeholder(at::IntArrayRef shape) {
  return at::zeros({1}).expand(shape).detach().set_requires_grad(true);
}

}  // namespace tessera
