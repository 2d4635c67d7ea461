// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Model directories of Hugging Face transformers: a reader of weights, and a writer for
/// from_pretrained.
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/model/model_spec.h"

namespace tessera {

class UnfinishedDirectory;

/// Weights of a directory: model.safetensors, or model.safetensors.index.json and its shards.
/// Checks all headers in the constructor; tensors are read on demand. Finds names with and without
/// the base model's prefix ("transformer." or "model."), and experts of a layer both as
/// transformers 5 computes with them, one tensor of all, and one by one. gpt-oss' experts in MXFP4
/// (uint8 "<name>_blocks" and "<name>_scales") are read as bf16. Files must be regular files of the
/// directory, or links into the blobs of a Hub cache. For pickled weights
/// (pytorch_model.bin) the error names the command that converts them.
class HuggingFaceDirectory final : public TensorSource {
 public:
  /// Throws Error(kDataLoss) with file and reason for missing or malformed files.
  explicit HuggingFaceDirectory(const std::string& directory);

  bool has(const std::string& name) const override;
  at::Tensor read(const std::string& name, at::IntArrayRef shape) const override;

  std::vector<std::string> names() const;  ///< stored names, sorted
  /// The stored name of a parameter, with or without the prefix; "" when absent.
  std::string stored_name(const std::string& name) const;
  /// The directory's open safetensors files.
  const std::vector<SafetensorsFile>& files() const { return files_; }
  /// Hash of the names and first 256 bytes of all tensors, 32 digits. Identifies a model
  /// independently of its path and its division into files.
  std::string fingerprint() const;

 private:
  void open_single(const std::string& path);
  void open_shards(const std::string& index_path);
  /// The stored name and its file; null when absent. is_again: names of experts' folders are not
  /// exchanged.
  const std::pair<const std::string, size_t>* locate(const std::string& name,
                                                     bool is_again = false) const;
  /// Whether the tensor of all experts is stored as one or two tensors for each.
  bool is_by_expert(const std::string& name) const;
  at::Tensor read_by_expert(const std::string& name, at::IntArrayRef shape) const;
  /// A stored tensor of this shape, and its file.
  std::pair<const SafetensorsFile*, const SafetensorsEntry*> find_stored(
      const std::string& name, at::IntArrayRef shape) const;
  at::Tensor read_mxfp4(const std::string& name, at::IntArrayRef shape) const;

  std::string directory_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string, size_t> file_of_;
};

/// Options of HuggingFaceWriter.
struct HuggingFaceWriterOptions {
  at::ScalarType dtype = at::kFloat;  ///< kFloat, kBFloat16 or kHalf
  /// size limit of a file; a larger model gets several files and an index
  int64_t max_shard_bytes = int64_t{5} * 1000 * 1000 * 1000;
  std::string weights = "model.safetensors";  ///< file name of unsharded weights
  bool replaces = false;  ///< whether it replaces an existing complete directory
  /// Header space of a file, for some 500 tensors; more of them start the next file.
  int64_t header_bytes = 64 << 10;
};

/// Writer of a model directory, which gets its name only when complete. Streams tensors without
/// keeping them.
///   HuggingFaceWriter writer("out/final", {});
///   strategy.visit_parameters([&](const VisitedParameter& p) {
///     writer.add(spec.stored_name(p.block, p.name), p.value);
///   });
///   writer.add_text("config.json", "{}");  // of a language model: its configuration's to_json()
///   writer.commit();
class HuggingFaceWriter {
 public:
  /// Writes into <directory>.tessera.tmp until commit(). Throws Error(kInvalidArgument) when the
  /// directory exists, unless options.replaces; nothing is overwritten.
  explicit HuggingFaceWriter(const std::string& directory,
                             const HuggingFaceWriterOptions& options = {});
  ~HuggingFaceWriter();  ///< removes the files unless commit() was called
  HuggingFaceWriter(const HuggingFaceWriter&) = delete;
  HuggingFaceWriter& operator=(const HuggingFaceWriter&) = delete;

  /// Writes a tensor, on any device, in the options' dtype.
  void add(const std::string& name, const at::Tensor& value);
  /// Writes a tensor in its own dtype.
  void add_buffer(const std::string& name, const at::Tensor& value);
  /// Writes a small text file beside the weights, such as config.json.
  void add_text(const std::string& file_name, const std::string& content);
  /// Copies a file under its name, e.g. tokenizer.json, into the folder `into`.
  void add_file(const std::string& source_path, const std::string& into = "");
  /// Writes the index and renames the directory; throws Error(kDataLoss) with the file.
  void commit();

 private:
  void store(const std::string& name, const at::Tensor& stored);
  std::string shard_path(size_t number) const;
  void close_shard();

  std::string directory_;
  HuggingFaceWriterOptions options_;
  std::unique_ptr<UnfinishedDirectory> temporary_;
  std::unique_ptr<SafetensorsWriter> shard_;
  size_t shard_count_ = 0;
  int64_t total_bytes_ = 0;
  /// Every name and its shard's number, in order of add()
  std::vector<std::pair<std::string, size_t>> shard_of_;
};

}  // namespace tessera
