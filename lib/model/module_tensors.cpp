// SPDX-License-Identifier: MIT
#include "lib/model/module_tensors.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <optional>

#include "lib/core/failure.h"
#include "lib/core/meta.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

template <typename Layer>
bool find_weight(torch::nn::Module& module, at::Tensor*& weight) {
  auto* layer = dynamic_cast<Layer*>(&module);
  if (layer == nullptr) return false;
  weight = &layer->weight;
  return true;
}
template <typename... Layers>
at::Tensor* weight_of(torch::nn::Module& module) {
  at::Tensor* weight = nullptr;
  (find_weight<Layers>(module, weight) || ...);
  return weight;
}

std::string joined(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

}  // namespace

at::Tensor* weight_member(torch::nn::Module& module) {
  using namespace torch::nn;
  return weight_of<LinearImpl, EmbeddingImpl, EmbeddingBagImpl, Conv1dImpl, Conv2dImpl, Conv3dImpl>(
      module);
}

std::set<const at::TensorImpl*> tables_of(const torch::nn::Module& module) {
  std::set<const at::TensorImpl*> tables;
  for (const auto& part : module.modules()) {
    const at::Tensor* table =
        weight_of<torch::nn::EmbeddingImpl, torch::nn::EmbeddingBagImpl>(*part);
    if (table == nullptr) continue;
    tables.insert(table->unsafeGetTensorImpl());
    for (const at::Tensor& registered : part->parameters(/*recurse=*/false)) {
      tables.insert(registered.unsafeGetTensorImpl());
    }
  }
  return tables;
}

std::vector<NamedTensor> used_parameters(const torch::nn::Module& module,
                                         const torch::nn::Module& root) {
  // Listed only if a weight was assigned: every block needs it, so the time is quadratic in their
  // number.
  std::optional<std::set<const at::TensorImpl*>> all;
  const auto is_registered = [&](const at::Tensor& tensor) {
    if (!all) {
      all.emplace();
      for (const at::Tensor& each : root.parameters()) all->insert(each.unsafeGetTensorImpl());
    }
    return all->contains(tensor.unsafeGetTensorImpl());
  };
  std::vector<NamedTensor> used;
  for (const auto& part : module.named_modules()) {
    const at::Tensor* weight = weight_member(*part.value());
    for (const auto& item : part.value()->named_parameters(/*recurse=*/false)) {
      const bool assigned = item.key() == "weight" && weight != nullptr &&
                            !weight->is_same(item.value()) && is_registered(*weight);
      used.push_back({joined(part.key(), item.key()), assigned ? *weight : item.value()});
    }
  }
  return used;
}

void MemoryMap::add(const std::string& block, const torch::nn::Module& module,
                    const torch::nn::Module& root) {
  for (const auto& [name, tensor] : used_parameters(module, root)) {
    add(concat("block ", block, ": parameter \"", name, "\""), tensor, false);
  }
  for (const auto& item : module.named_buffers()) {
    add(concat("block ", block, ": buffer \"", item.key(), "\""), item.value(), true);
  }
}

void MemoryMap::add(const std::string& name, const at::Tensor& tensor, bool buffer) {
  if (!tensor.has_storage() || tensor.is_meta() || tensor.numel() == 0) return;
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
  extents_.push_back({begin, begin + (last + 1) * static_cast<int64_t>(tensor.element_size()),
                      tensor.unsafeGetTensorImpl(), !buffer && tensor.requires_grad(), buffer,
                      name});
}

void MemoryMap::check() const {
  std::vector<Extent> extents = extents_;
  std::stable_sort(extents.begin(), extents.end(),
                   [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  const Extent* before = nullptr;  // the one that reaches farthest
  for (const Extent& extent : extents) {
    if (before != nullptr && extent.begin < before->end && (extent.trained || before->trained)) {
      tessera::check(extent.tensor == before->tensor && extent.buffer == before->buffer,
                     ErrorCode::kInvalidArgument, before->name, " and ", extent.name,
                     " share memory, but are not one parameter, so that a strategy would part "
                     "them; register one tensor as a parameter under both names");
    }
    if (before == nullptr || extent.end > before->end) before = &extent;
  }
}

void own_memory(const at::Tensor& tensor) {
  if (tensor.has_storage() && tensor.storage().use_count() > 1) {
    at::Tensor(tensor).set_data(tensor.detach().clone());
  }
}

// Changes tensors in place, because the module's own members share them.
void give_up_memory(torch::nn::Module& module) {
  const auto give_up = [](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.is_meta()) return;
    const at::Tensor without =
        at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
    c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    impl.set_storage_keep_dtype(without.storage());
    impl.set_storage_offset(0);
    impl._change_backend_component_keys(at::kMeta);
  };
  for (const NamedTensor& used : used_parameters(module, module)) give_up(used.tensor);
  for (const at::Tensor& tensor : module.parameters()) give_up(tensor);
  for (const at::Tensor& tensor : module.buffers()) give_up(tensor);
}

void ReturnedTensors::add(const std::string& block, const torch::nn::Module& module) {
  const std::lock_guard lock(mutex_);
  std::set<const at::TensorImpl*> alive;
  std::erase_if(known_, [&](const Weak& weak) {
    const auto held = weak.lock();
    if (held.defined()) alive.insert(held.get());
    return !held.defined();
  });
  const auto add = [&](const char* kind, const auto& items) {
    for (const auto& item : items) {
      check(!alive.contains(item.value().unsafeGetTensorImpl()), ErrorCode::kInvalidArgument,
            "block ", block, ": ", kind, " \"", item.key(),
            "\" is a tensor that the function has returned before; it must make the module and "
            "all its tensors anew each time, because every rank trains its own");
      known_.emplace_back(item.value().getIntrusivePtr());
    }
  };
  add("parameter", module.named_parameters());
  add("buffer", module.named_buffers());
}

void run_users_code(const std::string& block, const char* what, at::Device device,
                    const std::function<void()>& code) {
  run_users_code(block, what, [&] {
    try {
      code();
    } catch (const c10::Error& error) {
      if (!device.is_meta()) throw;
      fail(ErrorCode::kInvalidArgument, "block ", block, ": ", what,
           " cannot run without memory, as in a dry step: ",
           meta_refusal(error.what_without_backtrace()),
           ". It must not read values of tensors, and needs operators that LibTorch has for meta "
           "tensors");
    }
  });
}

void run_users_code(const std::string& block, const char* what, const std::function<void()>& code) {
  const auto refuse = [&](std::string message) {
    std::replace(message.begin(), message.end(), '\n', ' ');
    fail(ErrorCode::kInvalidArgument, "block ", block, ": ", what, " failed: ", message);
  };
  try {
    code();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    if (is_out_of_memory(error)) throw;
    refuse(current_failure().message);
  }
}

}  // namespace tessera
