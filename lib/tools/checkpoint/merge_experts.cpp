// SPDX-License-Identifier: MIT
#include "lib/tools/checkpoint/merge_experts.h"

#include <ATen/ATen.h>

#include <vector>

#include "lib/checkpoint/expert_files.h"
#include "lib/model/expert_names.h"
#include "tessera/core/error.h"

namespace tessera::programs {

ExpertsMerge::ExpertsMerge(const AdapterDirectory& adapter, const HuggingFaceDirectory& base)
    : adapter_(adapter), base_(base) {
  const SafetensorsFile& file = adapter.file();
  for (const SafetensorsEntry& entry : file.header().entries) {
    if (!is_of_all_experts(entry.name)) continue;
    const bool is_a = entry.name.ends_with(kLoraA);
    const std::string module = entry.name.substr(0, entry.name.size() - kLoraA.size());
    check(file.find(concat(module, is_a ? kLoraB : kLoraA)) != nullptr, ErrorCode::kDataLoss,
          file.path(), ": byte ", entry.begin, ": of ", module,
          " only one of lora_A and lora_B is there");
    if (is_a) place(module);
  }
}

// module: "base_model.model.<layer>.experts." or "....experts.base_layer.".
void ExpertsMerge::place(const std::string& module) {
  constexpr std::string_view kInner = "base_layer.";
  const bool inner = module.ends_with(kInner);
  std::string folder = module.substr(kLoraPrefix.size());
  if (inner) folder.resize(folder.size() - kInner.size());
  const bool down = !inner && adapter_.config().rule.targets_parameter(folder + "down_proj");
  const std::string tensor = folder + (down ? "down_proj" : "gate_up_proj");
  if (const std::string stored = base_.stored_name(tensor); !stored.empty()) {
    const bool in_out = !base_.stored_name(tensor + "_bias").empty();  // gpt-oss
    places_.emplace(stored, Place{.module = module, .in_out = in_out});
    return;
  }
  for (const std::string& all : {tensor, other_expert_folder(tensor)}) {
    for (int64_t expert = 0;; ++expert) {
      const std::vector<std::string> names = names_of_expert(all, expert);
      if (names.empty() || base_.stored_name(names[0]).empty()) {
        if (expert == 0) break;
        const SafetensorsEntry& a = *adapter_.file().find(concat(module, kLoraA));
        const int64_t theirs = a.shape[0] / adapter_.config().rule.r;
        check(theirs == expert, ErrorCode::kDataLoss, adapter_.file().path(), ": tensor \"", a.name,
              "\" is of ", theirs, " experts, the base has ", expert,
              "; the adapter is of another model");
        return;
      }
      const auto parts = static_cast<int64_t>(names.size());
      for (int64_t part = 0; part < parts; ++part) {
        places_.emplace(base_.stored_name(names[static_cast<size_t>(part)]),
                        Place{module, /*in_out=*/false, expert, part, parts});
      }
    }
  }
  const bool packed = base_.has(tensor);
  fail(ErrorCode::kDataLoss, adapter_.file().path(), ": tensor \"", module, kLoraA,
       packed ? "\": the base holds \"" : "\": the base has no weight \"", tensor,
       packed ? "\" as MXFP4; merge into its bf16 form" : "\"; the adapter is of another model");
}

const ExpertsMerge::Factors& ExpertsMerge::factors_of(const std::string& module) {
  if (const auto found = read_.find(module); found != read_.end()) return found->second;
  constexpr size_t kOfALayer = 2;
  if (read_.size() >= kOfALayer) read_.clear();
  const std::string a = concat(module, kLoraA), b = concat(module, kLoraB);
  const at::Tensor in_file = adapter_.file().read(a).to(at::kFloat);
  const int64_t experts = in_file.size(0) / adapter_.config().rule.r;
  const at::Tensor other = adapter_.file().read(b).to(at::kFloat);
  check(other.size(1) == in_file.size(0), ErrorCode::kDataLoss, adapter_.file().path(),
        ": tensor \"", b, "\" has shape ", other.sizes(), ", \"", a, "\" ", in_file.sizes(),
        "; they are not of the same experts");
  return read_
      .emplace(module, Factors{from_adapter_file(a, in_file, experts),
                               from_adapter_file(b, other, experts)})
      .first->second;
}

at::Tensor ExpertsMerge::merged(const at::Tensor& weight, const std::string& stored) {
  const Place& place = places_.at(stored);
  const Factors& factors = factors_of(place.module);
  at::Tensor a = factors.a, b = factors.b;
  const int64_t experts = a.size(0);
  const bool there = place.expert < experts && b.size(1) % place.parts == 0;
  if (place.expert >= 0 && there) {
    const int64_t count = b.size(1) / place.parts;
    a = a[place.expert];
    b = b[place.expert].narrow(0, place.part * count, count);
  }
  std::vector<int64_t> shape = b.sizes().vec();
  shape.back() = a.size(-1);
  if (place.in_out) std::swap(shape[1], shape[2]);
  check(there && weight.sizes() == at::IntArrayRef(shape), ErrorCode::kDataLoss,
        adapter_.file().path(), ": the adapter of ", stored, " makes ", at::IntArrayRef(shape),
        " with ", experts, " experts, the base's weight is ", weight.sizes(),
        "; the adapter is of another model, or its in and out are swapped, as PEFT has them for "
        "gpt-oss under transformers 4");
  const at::Tensor product = place.in_out ? at::matmul(b, a).transpose(1, 2) : at::matmul(b, a);
  return weight.to(at::kFloat)
      .add(product, adapter_.config().rule.scale())
      .to(weight.scalar_type());
}

}  // namespace tessera::programs
