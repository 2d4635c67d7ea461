// SPDX-License-Identifier: MIT
#pragma once
// Block of a torch module, or of one child of a Sequential.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lib/model/loss_check.h"
#include "lib/model/module_lora.h"
#include "lib/model/module_traits.h"
#include "lib/model/tensor_pack.h"
#include "tessera/model/adapters.h"

namespace tessera {

struct ModuleBlockInfo {
  std::string block;
  size_t index = 0;  // index of the block in the model, for its random numbers
  std::string checkpoint_prefix;
  std::set<std::string> aliases;  // parameters that ModelSpec::tied lists as aliases
  std::set<std::string> tables;   // parameters that are embeddings in another block
  LossFunction loss;              // empty unless the block is the last one and has no step
  ModuleOptions options;
  int takes = 1, gives = 1;  // see BlockBuilder
};

class ModuleBlock final : public Head {
 public:
  // Moves the module to the device in fp32, and reads the source. keep_eval: keeps submodules in
  // eval mode.
  ModuleBlock(ModuleBlockInfo info, detail::CallableModule callable, bool keep_eval,
              const BuildContext& context);

  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& micro_batch,
                     const BlockContext& context) override;
  // The module's output, or the result of its scores function.
  at::Tensor logits(const at::Tensor& hidden, const MicroBatch& micro_batch,
                    const BlockContext& context) override;
  bool supports_packed_rows() const override { return info_.options.supports_packed_rows; }
  bool gives_divisor() const override;
  std::vector<Parameter> parameters() override { return parameters_; }
  std::vector<Buffer> buffers() override;

 private:
  struct KeptBuffer {
    std::string name;
    at::Tensor registered;  // the module's handle
    at::Tensor kept;        // the buffer; shares memory with it unless weights are 16-bit
    bool statistic = false;
    uint32_t version = 0;  // version of `kept` at its last cast

    void give(at::ScalarType dtype);
  };

  bool draws(bool training) const;
  // Runs the user's part of the module, with all surrounding guarantees.
  void run_users(const char* function, const MicroBatch& micro_batch, const BlockContext& context,
                 const std::function<void(const MicroBatch& seen)>& users);
  at::Tensor run_module(const at::Tensor& hidden, const MicroBatch& micro_batch,
                        const BlockContext& context);
  at::Tensor take_step(const MicroBatch& micro_batch, const BlockContext& context);
  at::Tensor give_scores(const MicroBatch& micro_batch, const BlockContext& context);
  MicroBatch cast(const MicroBatch& micro_batch) const;
  void add_parameters(const BuildContext& context);
  void add_buffers(const BuildContext& context);
  void set_mode(bool training);
  void give_buffers(bool training);
  detail::Tensors inputs_of(const at::Tensor& hidden, const MicroBatch& micro_batch,
                            bool will_recompute);
  at::Tensor input_of(const at::Tensor& given, bool kept) const;
  void check_constants(const std::vector<uint32_t>& versions) const;

  ModuleBlockInfo info_;
  LossCheck loss_check_;
  detail::CallableModule callable_;
  Packing pack_;
  Unpacking unpack_;
  at::Device device_;
  ModuleTraits traits_;
  std::vector<std::shared_ptr<torch::nn::Module>> kept_in_eval_;
  std::optional<bool> mode_;  // undefined until the first forward pass
  std::vector<Parameter> parameters_;
  ModuleAdapters adapters_;  // their parameters come last
  std::vector<KeptBuffer> buffers_;
};

}  // namespace tessera
