// SPDX-License-Identifier: MIT
#include "lib/tools/checkpoint/tensor_set.h"

#include <filesystem>
#include <optional>
#include <utility>

#include "tessera/checkpoint/huggingface.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

namespace fs = std::filesystem;

class CheckpointTensors final : public TensorSet {
 public:
  explicit CheckpointTensors(const std::string& path) : checkpoint_(path) {
    for (const auto& [key, tensor] : checkpoint_.manifest().tensors) {
      tensors_[key.title()] = {tensor.dtype, tensor.shape};
      keys_[key.title()] = key;
    }
  }
  const std::string& path() const override { return checkpoint_.path(); }
  const std::map<std::string, TensorInfo>& tensors() const override { return tensors_; }
  at::Tensor read(const std::string& name) const override {
    return checkpoint_.read(keys_.at(name));
  }
  Verified verify() const override {
    return {checkpoint_.verify(), {}, "every byte has the hash of the manifest"};
  }
  const Checkpoint* checkpoint() const override { return &checkpoint_; }

 private:
  Checkpoint checkpoint_;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, TensorKey> keys_;
};

class SafetensorsSet final : public TensorSet {
 public:
  // path: a file or a Hugging Face directory.
  explicit SafetensorsSet(std::string path) : path_(std::move(path)) {
    if (fs::is_directory(path_)) {
      directory_.emplace(path_);
    } else {
      file_.emplace_back(path_);
    }
    for (const SafetensorsFile& file : directory_ ? directory_->files() : file_) {
      for (const SafetensorsEntry& entry : file.header().entries) {
        tensors_[entry.name] = {entry.dtype, entry.shape};
        file_of_[entry.name] = &file;
      }
    }
  }
  const std::string& path() const override { return path_; }
  const std::map<std::string, TensorInfo>& tensors() const override { return tensors_; }
  at::Tensor read(const std::string& name) const override { return file_of_.at(name)->read(name); }
  Verified verify() const override {
    Verified result{{}, {}, "headers, names and sizes are right; such files have no hashes"};
    for (const auto& [name, file] : file_of_) {
      try {
        const int64_t nans = file->count_nan(name);
        if (nans > 0) result.remarks.push_back(concat(name, ": ", nans, " values are NaN"));
      } catch (const Error& error) {
        result.defects.emplace_back(error.what());
      }
    }
    return result;
  }

 private:
  std::string path_;
  std::optional<HuggingFaceDirectory> directory_;
  std::vector<SafetensorsFile> file_;
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, const SafetensorsFile*> file_of_;
};

}  // namespace

std::unique_ptr<TensorSet> open_tensors(const std::string& path,
                                        std::vector<std::string>& notices) {
  check(fs::exists(path), ErrorCode::kDataLoss, path, ": does not exist");
  if (fs::exists(path + "/manifest.json")) return std::make_unique<CheckpointTensors>(path);
  if (!fs::is_directory(path) || fs::exists(path + "/model.safetensors") ||
      fs::exists(path + "/model.safetensors.index.json")) {
    return std::make_unique<SafetensorsSet>(path);
  }
  const std::string adapter = path + "/adapter_model.safetensors";
  if (fs::exists(adapter)) return std::make_unique<SafetensorsSet>(adapter);
  const FoundCheckpoint found = find_checkpoint(path);
  for (const std::string& text : found.skipped) notices.push_back("skipped " + text);
  check(!found.path.empty(), ErrorCode::kDataLoss, path,
        ": neither a checkpoint (manifest.json), nor a run's directory with a complete one, nor a "
        "Hugging Face directory (model.safetensors) or adapters (adapter_model.safetensors)");
  return std::make_unique<CheckpointTensors>(found.path);
}

}  // namespace tessera::programs
