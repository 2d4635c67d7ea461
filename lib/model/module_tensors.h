// SPDX-License-Identifier: MIT
#pragma once
// Tensors of a user's module: names in use, and sharing of memory.
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

// The weight member that a LibTorch layer computes with, first registered as "weight"; null for
// other modules. `head->weight = table->weight` replaces only the member.
at::Tensor* weight_member(torch::nn::Module& module);

// Weights of all torch::nn::Embedding and EmbeddingBag in it.
std::set<const at::TensorImpl*> tables_of(const torch::nn::Module& module);

// Registered names with the tensors that the module computes with. An assigned weight counts if it
// is registered elsewhere in `root`, which contains the module.
std::vector<NamedTensor> used_parameters(const torch::nn::Module& module,
                                         const torch::nn::Module& root);

// Detects trained parameters that share memory with another parameter or a buffer: a strategy would
// separate them. Add the tensors of all blocks before check().
class MemoryMap {
 public:
  void add(const std::string& block, const torch::nn::Module& module,
           const torch::nn::Module& root);
  void check() const;

 private:
  struct Extent {
    const char* begin;
    const char* end;
    const at::TensorImpl* tensor;
    bool trained, buffer;
    std::string name;
  };
  void add(const std::string& name, const at::Tensor& tensor, bool buffer);
  std::vector<Extent> extents_;
};

// Gives the tensor its own memory if another tensor is a view of it.
void own_memory(const at::Tensor& tensor);

// Converts the module's tensors to meta, which Module::to() cannot do.
void give_up_memory(torch::nn::Module& module);

// Living tensors that a user's function has returned. In-process ranks share it, like the function.
class ReturnedTensors {
 public:
  // Throws Error(kInvalidArgument) for a module that contains one of them.
  void add(const std::string& block, const torch::nn::Module& module);

 private:
  using Weak = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;
  std::mutex mutex_;
  std::vector<Weak> known_;
};

// Runs a user's code. Adds the block's name to LibTorch's and standard errors, in one line;
// out-of-memory errors are unchanged.
void run_users_code(const std::string& block, const char* what, const std::function<void()>& code);
// run_users_code() on this device: on meta LibTorch's errors show unsupported code.
void run_users_code(const std::string& block, const char* what, at::Device device,
                    const std::function<void()>& code);

}  // namespace tessera
