// SPDX-License-Identifier: MIT
#include "tessera/backends/copy_weights.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>

#include "lib/checkpoint/slice_runs.h"
#include "lib/comm/described_tensor.h"
#include "lib/core/number_text.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

// A module's tensor in exchangeable form. Names of one tensor share a number.
struct ModuleTensor {
  std::vector<int64_t> shape;
  int64_t number = 0;
  bool is_parameter = true;
  at::Tensor tensor = {};  // this rank's module's
};
using ModuleTensors = std::map<std::string, ModuleTensor>;

ModuleTensors tensors_of(const torch::nn::Module& module) {
  ModuleTensors tensors;
  std::map<const at::TensorImpl*, int64_t> numbers;
  const auto add = [&](const std::string& name, const at::Tensor& tensor, bool is_parameter) {
    if (!tensor.defined()) return;
    const auto next = static_cast<int64_t>(numbers.size());
    const int64_t number = numbers.emplace(tensor.unsafeGetTensorImpl(), next).first->second;
    tensors[name] = {tensor.sizes().vec(), number, is_parameter, tensor};
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value(), true);
  for (const auto& item : module.named_buffers()) add(item.key(), item.value(), false);
  return tensors;
}

// Serialised, one tensor a line: name, number, whether it is a parameter, sizes.
std::string to_words(const ModuleTensors& tensors) {
  std::string words;
  for (const auto& [name, tensor] : tensors) {
    words += concat(name, "\n", tensor.number, " ", int{tensor.is_parameter});
    for (const int64_t size : tensor.shape) words += concat(" ", size);
    words += "\n";
  }
  return words;
}

ModuleTensors from_words(const std::string& words) {
  ModuleTensors tensors;
  std::istringstream lines(words);
  std::string name, line;
  while (std::getline(lines, name) && std::getline(lines, line)) {
    std::istringstream numbers = reader_of(line);
    ModuleTensor& tensor = tensors[name];
    int is_parameter = 0;
    numbers >> tensor.number >> is_parameter;
    tensor.is_parameter = is_parameter != 0;
    for (int64_t size = 0; numbers >> size;) tensor.shape.push_back(size);
  }
  return tensors;
}

// Mapping between tensors of a module and of a model, with mismatches.
class Matching {
 public:
  Matching(const ModuleTensors& tensors, const CopyOptions& options, const char* who)
      : tensors_(tensors), options_(options), who_(who) {}

  // Null without a matching tensor.
  const ModuleTensor* find(const VisitedParameter& visited, bool is_buffer, std::string* name) {
    const std::string full = visited.block + "." + visited.name;
    *name = options_.name             ? options_.name(visited.block, visited.name)
            : tensors_.contains(full) ? full
                                      : visited.name;
    const auto found = tensors_.find(*name);
    if (found == tensors_.end()) {
      // A buffer that the module lacks was added by a strategy and is ignored.
      if (!is_buffer) {
        complain(concat("the module has no \"", *name, "\", which is the model's parameter ", full,
                        "; say how they are called (CopyOptions::name)"));
      }
      return nullptr;
    }
    met_.insert(found->second.number);
    if (at::IntArrayRef(found->second.shape) == visited.value.sizes()) return &found->second;
    complain(concat("\"", *name, "\" has shape ", at::IntArrayRef(found->second.shape),
                    " in the module and ", visited.value.sizes(), " in the model (", full, ")"));
    return nullptr;
  }
  // Whether everything matched, after all were looked up.
  bool fits() {
    for (const auto& [name, tensor] : tensors_) {
      if (tensor.is_parameter && !met_.contains(tensor.number)) {
        complain(concat("the model has no parameter for the module's \"", name, "\""));
      }
    }
    return problem_.empty();
  }
  void require_fit() { check(fits(), ErrorCode::kInvalidArgument, who_, ": ", problem_); }

 private:
  void complain(const std::string& what) {
    if (problem_.empty()) problem_ = what;
  }

  const ModuleTensors& tensors_;
  const CopyOptions& options_;
  const char* who_;
  std::set<int64_t> met_;
  std::string problem_;
};

}  // namespace

void copy_to(Strategy& strategy, torch::nn::Module* module, const CopyOptions& options) {
  const at::NoGradGuard no_grad;
  const ModuleTensors tensors = module == nullptr ? ModuleTensors() : tensors_of(*module);
  Matching matching(tensors, options, "copy_to");
  bool writes = false;
  const auto visit = [&](bool is_buffer) {
    return [&, is_buffer](const VisitedParameter& visited) {
      std::string name;
      if (module == nullptr) return;
      const ModuleTensor* target = matching.find(visited, is_buffer, &name);
      if (writes && target != nullptr) at::Tensor(target->tensor).copy_(visited.value);
    };
  };
  for (int pass = 0; pass < 2; ++pass) {  // on all ranks, even if this rank's module does not fit
    strategy.visit_parameters(visit(/*is_buffer=*/false));
    strategy.visit_buffers(visit(/*is_buffer=*/true));
    writes = matching.fits();
  }
  if (module != nullptr) matching.require_fit();
}

void copy_from(Strategy& strategy, const torch::nn::Module* module, Communicator& world,
               const CopyOptions& options) {
  const at::NoGradGuard no_grad;
  const bool gives = world.rank() == 0;
  const ModuleTensors own = gives && module != nullptr ? tensors_of(*module) : ModuleTensors();
  const std::string told =
      broadcast_described(world, 0, {gives ? to_words(own) : std::string(), {}}).words;
  const ModuleTensors tensors = from_words(gives ? to_words(own) : told);
  check(!tensors.empty(), ErrorCode::kInvalidArgument,
        "copy_from: rank 0 gave no module, or one without parameters; its module is the model");
  Matching matching(tensors, options, "copy_from");
  std::map<std::string, std::string> names;  // the module's names, by those of the state
  const auto visitor = [&](bool is_buffer) {
    return [&, is_buffer](const VisitedParameter& visited) {
      std::string name;
      if (matching.find(visited, is_buffer, &name) == nullptr) return;
      names[visited.block + "." + visited.name] = name;
    };
  };
  strategy.visit_parameters(visitor(/*is_buffer=*/false));
  strategy.visit_buffers(visitor(/*is_buffer=*/true));
  matching.require_fit();  // equal on all ranks
  std::map<std::string, std::vector<StateTensor>> pieces;
  for (const StateTensor& piece : strategy.state()) {
    if (piece.kind == "parameter" || piece.kind == "buffer") pieces[piece.name].push_back(piece);
  }
  for (const StateTensor& piece : strategy.state()) {
    check(piece.kind != "codes" || !names.contains(piece.name), ErrorCode::kInvalidArgument,
          "copy_from: \"", piece.name,
          "\" is frozen in 8 bits, whose scale comes from the values "
          "given to attach(); attach the strategy to a model with the module's values");
  }
  for (const auto& [state_name, module_name] : names) {
    at::Tensor value;
    if (gives) value = own.at(module_name).tensor.detach().to(world.device()).contiguous();
    const at::Tensor got = broadcast_described(world, 0, {"", value}).tensor;
    for (const StateTensor& piece : pieces[state_name]) {
      const at::Tensor values = piece.get();
      write_slice(piece.slice, gives ? value : got, values);
      piece.set(values);
    }
  }
  strategy.state_restored();
}

}  // namespace tessera
