// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Adapter directories of Hugging Face's PEFT: adapter_config.json and adapter_model.safetensors.
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tessera/checkpoint/huggingface.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/json.h"
#include "tessera/model/lora.h"
#include "tessera/model/model_spec.h"

namespace tessera {

/// Content of adapter_config.json.
struct AdapterConfig {
  LoraRule rule;                ///< rank, scale, dropout and targets
  std::string base_model;       ///< base_model_name_or_path
  std::string task_type;        ///< CAUSAL_LM or SEQ_CLS; "" is neither
  bool fan_in_fan_out = false;  ///< the base stores its matrices [in, out], as GPT-2 does

  /// Reads adapter_config.json; AdapterDirectory resolves targets that are not a list of names.
  /// Throws Error(kDataLoss) with key and line unless it is plain LoRA: for other adapters, ranks
  /// per module, biases and DoRA.
  static AdapterConfig from_json(const Json& json);
  std::string to_json() const;  ///< adapter_config.json, as PEFT writes it
};

/// Tensors of an adapter directory, by PEFT's names.
class AdapterDirectory final : public TensorSource {
 public:
  /// Throws Error(kDataLoss) if config and tensors do not match.
  explicit AdapterDirectory(const std::string& directory);

  const AdapterConfig& config() const { return config_; }  ///< the content of adapter_config.json
  const SafetensorsFile& file() const { return file_; }    ///< the open adapter_model.safetensors

  bool has(const std::string& name) const override;
  at::Tensor read(const std::string& name, at::IntArrayRef shape) const override;

  /// Throws Error(kDataLoss) unless model, the result of add_lora() with config(), trains exactly
  /// these tensors.
  void check_fits(const ModelSpec& model) const;
  /// Throws Error(kDataLoss) if a module of the base that adapter_config.json trains has no tensor.
  /// base: the stored names of the base's parameters.
  void check_complete(const std::vector<std::string>& base) const;

 private:
  void settle_targets(const Json& json);
  const SafetensorsEntry& entry_of(const std::string& name, at::IntArrayRef shape) const;

  std::string directory_;
  AdapterConfig config_;
  /// Targets and modules of the configuration beyond config_, without a tensor in the file.
  std::vector<std::string> absent_targets_, absent_modules_;
  SafetensorsFile file_;
};

/// Options of a HuggingFaceWriter for what the model trains: one file, adapter_model.safetensors.
HuggingFaceWriterOptions adapter_writer_options(const ModelSpec& model);
/// The same for tensors of these stored names.
HuggingFaceWriterOptions adapter_writer_options(const std::vector<std::string>& names);

}  // namespace tessera
