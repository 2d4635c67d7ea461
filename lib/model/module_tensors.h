// SPDX-License-Identifier: MIT
#pragma once
// The tensors of a user's module: which are used under which name, and who else holds them.
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace tessera {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// The member that a layer of LibTorch computes with, registered as "weight" when the layer is made;
// null for other modules. `head->weight = table->weight` replaces the member alone.
at::Tensor* weight_member(torch::nn::Module& module);

// The tables of all torch::nn::Embedding and EmbeddingBag in it.
std::set<const at::TensorImpl*> tables_of(const torch::nn::Module& module);

// The registered names with the tensors that the module computes with. A weight that was assigned
// counts where it is registered elsewhere in `root`, of which the module is a part.
std::vector<NamedTensor> used_parameters(const torch::nn::Module& module,
                                         const torch::nn::Module& root);

// Refuses trained parameters whose memory another parameter or a buffer has, too: once placed by a
// strategy they would part. Tensors of all blocks are added before check().
class MemoryMap {
 public:
  void add(const std::string& block, const torch::nn::Module& module,
           const torch::nn::Module& root);
  void check() const;

 private:
  struct Place {
    const char* begin;
    const char* end;
    const at::TensorImpl* tensor;
    bool trained, buffer;
    std::string name;
  };
  void add(const std::string& name, const at::Tensor& tensor, bool buffer);
  std::vector<Place> places_;
};

// Gives the tensor memory of its own where another tensor has a view of it.
void own_memory(const at::Tensor& tensor);

// The module's tensors become meta tensors, which Module::to() cannot make of them.
void give_up_memory(torch::nn::Module& module);

// The tensors that a user's function has returned and that still exist. Ranks that are threads
// share it, as they share the function.
class ReturnedTensors {
 public:
  // Throws Error(kInvalidArgument) for a module with one of them.
  void add(const std::string& block, const torch::nn::Module& module);

 private:
  using Weak = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;
  std::mutex mutex_;
  std::vector<Weak> known_;
};

// Runs a user's code. LibTorch's errors and others of the standard library become one line that
// names the block; running out of memory stays what it is.
void run_users_code(const std::string& block, const char* what, const std::function<void()>& code);
// On this device: on meta LibTorch's errors say what code must not do there.
void run_users_code(const std::string& block, const char* what, at::Device device,
                    const std::function<void()>& code);

}  // namespace tessera
