// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Adapter directories in the layout of Hugging Face's PEFT: adapter_config.json and
/// adapter_model.safetensors.
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tessera/checkpoint/huggingface.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/json.h"
#include "tessera/model/lora.h"
#include "tessera/model/model_spec.h"

namespace tessera {

/// What adapter_config.json says.
struct AdapterConfig {
  LoraRule rule;                ///< rank, scale, dropout and targets
  std::string base_model;       ///< base_model_name_or_path
  std::string task_type;        ///< CAUSAL_LM or SEQ_CLS; "" is neither
  bool fan_in_fan_out = false;  ///< the base stores its matrices [in, out], as GPT-2 does

  /// Of adapter_config.json, but for targets that are no list of names (see AdapterDirectory).
  /// Throws Error(kDataLoss) with key and line for what is not plain LoRA: other kinds of adapters,
  /// ranks of single modules, biases, DoRA.
  static AdapterConfig from_json(const Json& json);
  std::string to_json() const;  ///< adapter_config.json as PEFT writes it
};

/// The tensors of an adapter directory, by PEFT's names.
class AdapterDirectory final : public TensorSource {
 public:
  /// Throws Error(kDataLoss) for files that do not belong together.
  explicit AdapterDirectory(const std::string& directory);

  const AdapterConfig& config() const { return config_; }  ///< the content of adapter_config.json
  const SafetensorsFile& file() const { return file_; }    ///< the open adapter_model.safetensors

  bool has(const std::string& name) const override;
  at::Tensor read(const std::string& name, at::IntArrayRef shape) const override;

  /// Throws Error(kDataLoss) unless model, which add_lora() has made by config(), trains exactly
  /// what is here.
  void check_fits(const ModelSpec& model) const;
  /// Throws Error(kDataLoss) for a module that adapter_config.json trains and the base has, without
  /// a tensor here. base: the stored names of the base's parameters.
  void check_complete(const std::vector<std::string>& base) const;

 private:
  void settle_targets(const Json& json);
  const SafetensorsEntry& entry_of(const std::string& name, at::IntArrayRef shape) const;

  std::string directory_;
  AdapterConfig config_;
  /// What the configuration asks for beyond config_, without a tensor in the file.
  std::vector<std::string> absent_targets_, absent_modules_;
  SafetensorsFile file_;
};

/// Of a HuggingFaceWriter that writes what the model trains: one file, adapter_model.safetensors.
HuggingFaceWriterOptions adapter_writer_options(const ModelSpec& model);

}  // namespace tessera
