// SPDX-License-Identifier: MIT
#include "python/weights.h"

#include <ATen/ATen.h>

#include <vector>

#include "lib/core/hash.h"
#include "lib/core/nearest.h"
#include "python/tensors.h"
#include "tessera/core/error.h"

namespace tessera::python {
namespace {

constexpr const char* kBasePrefixes[] = {"transformer.", "model."};
// Constants in old checkpoints, which the model computes itself.
constexpr const char* kConstants[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
// A duplicate of a tied head, which the head compares; or the causal head of a classifier's base.
constexpr const char* kHead = "lm_head.weight";
// Random if the weights are a causal model's.
constexpr const char* kDrawn = "score.weight";

bool is_constant(const std::string& name) {
  for (const std::string end : kConstants) {
    if (name.ends_with(end)) return true;
  }
  return false;
}

}  // namespace

GivenWeights::GivenWeights(const nb::dict& arrays, const ModelSpec& model, at::Device device,
                           const std::set<std::string>& others) {
  for (const auto& [key, value] : arrays) {
    const std::string name = nb::str(key).c_str();
    tensors_.emplace(name, tensor_of(value, device, concat("weight \"", name, "\"")));
  }
  std::set<std::string> used;
  std::vector<std::string> lacking;
  for (const ParameterInfo& parameter : parameters_of(model)) {
    const std::string wanted = model.stored_name(parameter.block, parameter.name);
    const std::string name = locate(wanted);
    if (name.empty()) {
      if (!parameter.alias && wanted != kDrawn) lacking.push_back(wanted);
      continue;
    }
    used.insert(name);
    if (parameter.alias) continue;  // the owner counts
    const at::Tensor& tensor = tensors_.at(name);
    check(tensor.sizes() == at::IntArrayRef(parameter.shape), ErrorCode::kInvalidArgument,
          "weight \"", name, "\" has shape ", tensor.sizes(), ", model ", model.name, " asks for ",
          at::IntArrayRef(parameter.shape));
    check(tensor.is_floating_point(), ErrorCode::kInvalidArgument, "weight \"", name, "\" is of ",
          at::toString(tensor.scalar_type()), "; weights are of floating-point dtypes");
  }
  std::vector<std::string> candidates = lacking;  // short forms included
  for (const std::string& name : lacking) {
    for (const std::string prefix : kBasePrefixes) {
      if (name.starts_with(prefix)) candidates.push_back(name.substr(prefix.size()));
    }
  }
  for (const auto& [name, tensor] : tensors_) {
    check(used.contains(name) || name == kHead || is_constant(name) || others.contains(name),
          ErrorCode::kInvalidArgument, "model ", model.name, " has no weight \"", name, "\"",
          nearest_hint(name, candidates));
  }
  check(lacking.empty(), ErrorCode::kInvalidArgument, "weight \"",
        lacking.empty() ? "" : lacking.front(), "\" of model ", model.name, " is missing, one of ",
        lacking.size(), " that are; give all, or no weights at all to draw them");
}

std::string GivenWeights::locate(const std::string& name) const {
  if (tensors_.contains(name)) return name;
  for (const std::string prefix : kBasePrefixes) {
    const std::string other = name.starts_with(prefix) ? name.substr(prefix.size()) : prefix + name;
    if (tensors_.contains(other)) return other;
  }
  return "";
}

at::Tensor GivenWeights::read(const std::string& name, at::IntArrayRef shape) const {
  const std::string found = locate(name);
  check(!found.empty(), ErrorCode::kInvalidArgument, "weight \"", name, "\" is missing");
  const at::Tensor& tensor = tensors_.at(found);
  check(tensor.sizes() == shape, ErrorCode::kInvalidArgument, "weight \"", found, "\" has shape ",
        tensor.sizes(), ", the model asks for ", shape);
  return tensor.detach()
      .to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true)
      .contiguous();
}

std::string GivenWeights::fingerprint() const {
  Xxh3Stream hash;
  for (const auto& [name, tensor] : tensors_) {
    const std::string about = concat(name, " ", tensor.scalar_type(), " ", tensor.sizes(), "\n");
    hash.update(about.data(), about.size());
    const at::Tensor host = tensor.cpu().contiguous();
    hash.update(host.const_data_ptr(), host.nbytes());
  }
  return hash.digest128().hex();
}

}  // namespace tessera::python
