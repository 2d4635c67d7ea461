// SPDX-License-Identifier: MIT
#include "lib/model/module_lora.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include "tessera/core/error.h"
#include "tessera/model/lora.h"

namespace tessera {

ModuleAdapters::ModuleAdapters(const torch::nn::Module& root, const std::string& prefix,
                               const std::set<std::string>& aliases, size_t block_index,
                               const BuildContext& context) {
  if (context.lora == nullptr) return;
  scale_ = context.lora->scale();
  for (const auto& part : root.named_modules()) {
    const auto layer = std::dynamic_pointer_cast<torch::nn::LinearImpl>(part.value());
    const std::string weight = part.key().empty() ? "weight" : part.key() + ".weight";
    std::string module = prefix + part.key();
    if (module.ends_with('.')) module.pop_back();
    if (layer == nullptr || aliases.contains(weight) || !context.lora->targets(module)) continue;
    check(context.lora->dropout == 0, ErrorCode::kInvalidArgument, "LoRA: dropout is ",
          context.lora->dropout, ", but module ", module,
          " computes with W + scale B A, into which no dropout goes; set it to 0");
    const auto matrices =
        lora_matrices(context, block_index, module, layer->weight.size(0), layer->weight.size(1));
    const auto add = [&](const at::Tensor& value, std::string_view matrix) {
      const at::Tensor leaf = value.to(context.device).set_requires_grad(true);
      parameters_.push_back({adapter_name(weight, matrix), leaf, /*weight_decay=*/true});
      return leaf;
    };
    layers_.push_back({layer, layer->weight, add(matrices.a, kLoraA), add(matrices.b, kLoraB)});
  }
}

void ModuleAdapters::call(const std::function<void()>& forward) const {
  struct Restored {
    const std::vector<Adapted>& layers;
    ~Restored() {
      for (const Adapted& adapted : layers) adapted.layer->weight = adapted.weight;
    }
  } const restored{layers_};
  for (const auto& [layer, weight, a, b] : layers_) {
    const auto wide = at::promote_types(weight.scalar_type(), at::kFloat);
    const at::Tensor product = b.to(wide).matmul(a.to(wide));
    layer->weight = weight.to(wide).add(product, scale_).to(weight.scalar_type());
  }
  forward();
}

}  // namespace tessera
