// SPDX-License-Identifier: MIT
#include "lib/model/module_snapshot.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <typeinfo>

#include "tessera/core/error.h"

namespace tessera {
namespace {

using torch::nn::Module;

// Access to a module's registrations, which LibTorch allows only in derived classes.
struct Registered : Module {
  static auto& parameters(Module& module) { return module.*&Registered::parameters_; }
};

}  // namespace

std::string ModuleSnapshot::Entry::text() const {
  return concat(buffer ? "buffer" : "parameter", " \"", used.name, "\"");
}

template <typename... Parts>
void ModuleSnapshot::refuse(const Parts&... parts) const {
  fail(ErrorCode::kInvalidArgument, "block ", block_, " (", module_.name(), "): ", parts...,
       maker_ == "clone()"
           ? "; reset() must make every tensor and layer anew, or give a function that makes the "
             "module"
           : "; it must make every tensor and layer anew, of the module's names and shapes");
}

ModuleSnapshot::ModuleSnapshot(std::string block, std::string maker, const Module& module,
                               const Module& root)
    : block_(std::move(block)), maker_(std::move(maker)), module_(module) {
  const auto parameters = module.named_parameters();
  for (const NamedTensor& used : used_parameters(module, root)) {
    entries_.push_back(
        {used, parameters[used.name], used.tensor.detach(), used.tensor.requires_grad(), false});
  }
  for (const auto& item : module.named_buffers()) {
    entries_.push_back({{item.key(), item.value()},
                        item.value(),
                        item.value().detach(),
                        item.value().requires_grad(),
                        true});
  }
}

void ModuleSnapshot::complete(Module& clone) const {
  const at::NoGradGuard no_grad;
  restore();
  part_pretrained(clone);
  compare(clone);
  compare_layers(clone);
  copy_values(clone);
}

// Undoes changes of clone() to shared tensors: registering one makes it require a gradient, and
// gives it the copy's memory.
void ModuleSnapshot::restore() const {
  for (const Entry& entry : entries_) {
    const at::Tensor& tensor = entry.used.tensor;
    if (!tensor.is_alias_of(entry.memory)) at::Tensor(tensor).set_data(entry.memory);
    if (tensor.requires_grad() != entry.requires_grad) {
      tensor.set_requires_grad(entry.requires_grad);
    }
  }
}

// A LibTorch layer made from a weight (Embedding::from_pretrained) registers it again in the copy.
// Only the member and the registered handle use it.
void ModuleSnapshot::part_pretrained(Module& clone) const {
  const auto own = module_.named_modules();
  for (const auto& part : clone.named_modules()) {
    at::Tensor* weight = weight_member(*part.value());
    const auto* same = own.find(part.key());
    if (weight == nullptr || same == nullptr || *same == part.value()) continue;
    const at::Tensor* theirs = weight_member(**same);
    auto& registered = Registered::parameters(*part.value())["weight"];
    if (theirs == nullptr || !theirs->is_same(registered) || !weight->is_same(registered)) continue;
    registered = theirs->detach().clone();
    *weight = registered;
  }
}

void ModuleSnapshot::compare(Module& clone) const {
  const auto parameters = clone.named_parameters(), buffers = clone.named_buffers();
  const auto own_parameters = module_.named_parameters(), own_buffers = module_.named_buffers();
  std::map<const at::TensorImpl*, const Entry*> tensors;
  for (const Entry& entry : entries_) {
    const std::string& name = entry.used.name;
    const at::Tensor* copy = (entry.buffer ? buffers : parameters).find(name);
    if (copy == nullptr) refuse(maker_, " makes no ", entry.text());
    const at::Tensor* now = (entry.buffer ? own_buffers : own_parameters).find(name);
    if (copy->is_same(entry.used.tensor) || (now != nullptr && copy->is_same(*now))) {
      refuse(maker_, " gives the copy the module's own ", entry.text());
    }
    if (copy->sizes() != entry.registered.sizes()) {
      refuse(maker_, " gives ", entry.text(), " the shape ", copy->sizes(), " instead of ",
             entry.registered.sizes());
    }
    const auto [first, inserted] = tensors.try_emplace(copy->unsafeGetTensorImpl(), &entry);
    if (!inserted && !first->second->used.tensor.is_same(entry.used.tensor)) {
      refuse(maker_, " makes one tensor of ", first->second->text(), " and ", entry.text());
    }
  }
  const auto check_known = [&](const auto& copies, const auto& own, const char* kind) {
    for (const auto& item : copies) {
      if (own.find(item.key()) == nullptr) {
        refuse(maker_, " adds the ", kind, " \"", item.key(), "\"");
      }
    }
  };
  check_known(parameters, own_parameters, "parameter");
  check_known(buffers, own_buffers, "buffer");
}

void ModuleSnapshot::compare_layers(const Module& clone) const {
  const auto copies = clone.named_modules();
  for (const auto& part : module_.named_modules()) {
    const auto* copy = copies.find(part.key());
    if (copy == nullptr) refuse(maker_, " makes no layer \"", part.key(), "\"");
    if (*copy == part.value()) {
      refuse(maker_, " gives the copy the module's own layer \"", part.key(), "\"");
    }
    const Module &theirs = *part.value(), &made = **copy;
    if (typeid(theirs) != typeid(made)) {
      refuse(maker_, " makes a ", made.name(), " of layer \"", part.key(), "\", a ", theirs.name());
    }
  }
}

void ModuleSnapshot::copy_values(Module& clone) const {
  const auto parameters = clone.named_parameters(), buffers = clone.named_buffers();
  for (const Entry& entry : entries_) {
    at::Tensor copy = (entry.buffer ? buffers : parameters)[entry.used.name];
    const at::Tensor& own = entry.memory;
    const bool same = !own.is_meta() && copy.options().type_equal(own.options()) &&
                      !copy.is_alias_of(own) && at::equal(copy, own);
    if (!same) copy.set_data(own.clone());
    if (!entry.buffer) copy.set_requires_grad(entry.requires_grad);
  }
  const auto copies = clone.named_modules();
  for (const auto& part : module_.named_modules()) {
    Module& copy = *copies[part.key()];
    copy.train(part.value()->is_training());  // its layers too, which follow
    at::Tensor* weight = weight_member(copy);
    const auto registered = copy.named_parameters(/*recurse=*/false);
    if (weight != nullptr && registered.contains("weight")) *weight = registered["weight"];
  }
}

}  // namespace tessera
