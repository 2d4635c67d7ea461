// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Model directories in the layout of Hugging Face transformers: reading weights from them, and
/// writing one that from_pretrained opens.
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/model/model_spec.h"

namespace tessera {

class UnfinishedDirectory;

/// The weights of a directory with model.safetensors, or with model.safetensors.index.json and its
/// shards. Headers are read and checked at once, tensors when asked for. Names are found with and
/// without the base model's prefix ("transformer." or "model."). All are regular files of the
/// directory; links lead nowhere else but into the blobs of a Hub cache. Pickled weights
/// (pytorch_model.bin) are refused with the command that converts them.
class HuggingFaceDirectory final : public TensorSource {
 public:
  /// Throws Error(kDataLoss) with file and reason for what is missing or malformed.
  explicit HuggingFaceDirectory(const std::string& directory);

  bool has(const std::string& name) const override;
  at::Tensor read(const std::string& name, at::IntArrayRef shape) const override;

  std::vector<std::string> names() const;  ///< as stored, sorted
  /// As stored, with or without the prefix; "" when absent.
  std::string stored_name(const std::string& name) const;
  /// The directory's safetensors files, opened.
  const std::vector<SafetensorsFile>& files() const { return files_; }
  /// Of the names and the first 256 bytes of all tensors, 32 digits: tells models apart wherever
  /// they lie and however they are cut into files.
  std::string fingerprint() const;

 private:
  void open_single(const std::string& path);
  void open_shards(const std::string& index_path);
  /// The stored name and its file; null when absent.
  const std::pair<const std::string, size_t>* locate(const std::string& name) const;

  std::string directory_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string, size_t> file_of_;
};

/// How a model directory is written.
struct HuggingFaceWriterOptions {
  at::ScalarType dtype = at::kFloat;  ///< kFloat, kBFloat16 or kHalf
  /// a larger model gets several files and an index
  int64_t max_shard_bytes = int64_t{5} * 1000 * 1000 * 1000;
  std::string weights = "model.safetensors";  ///< the file, where there is one
  bool replaces = false;                      ///< a directory of this name, when it is complete
  int64_t header_bytes = 64 << 10;  ///< of a file: some 500 tensors; more open the next one
};

/// Writes a directory that appears under its name only when it is complete. Tensors stream through:
/// none is kept.
///   HuggingFaceWriter writer("out/final", {});
///   strategy.visit_parameters([&](const VisitedParameter& p) {
///     writer.add(spec.stored_name(p.block, p.name), p.value);
///   });
///   writer.add_text("config.json", "{}");  // of a language model: its configuration's to_json()
///   writer.commit();
class HuggingFaceWriter {
 public:
  /// Throws Error(kInvalidArgument) when the directory exists, unless the options say that it is
  /// replaced: nothing is overwritten. Writes into <directory>.tessera.tmp until commit().
  explicit HuggingFaceWriter(const std::string& directory,
                             const HuggingFaceWriterOptions& options = {});
  ~HuggingFaceWriter();  ///< without commit() nothing stays behind
  HuggingFaceWriter(const HuggingFaceWriter&) = delete;
  HuggingFaceWriter& operator=(const HuggingFaceWriter&) = delete;

  /// Writes one tensor of any device in the options' dtype.
  void add(const std::string& name, const at::Tensor& value);
  void add_buffer(const std::string& name, const at::Tensor& value);  ///< in its own dtype
  /// Writes a small file beside the weights, such as config.json.
  void add_text(const std::string& file_name, const std::string& content);
  /// A copy under the same name, e.g. of tokenizer.json, in the folder of this name.
  void add_file(const std::string& source_path, const std::string& into = "");
  /// Writes the index and gives the directory its name; throws Error(kDataLoss) with the file.
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
  /// every name and its shard, in the order added
  std::vector<std::pair<std::string, size_t>> shard_of_;
};

}  // namespace tessera
