// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// safetensors files: a strict reader that loads tensors one by one, and a streaming writer.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera {

/// One tensor in a file.
struct SafetensorsEntry {
  std::string name;                              ///< unique in the file
  at::ScalarType dtype = at::ScalarType::Float;  ///< dtype of the stored bytes
  std::vector<int64_t> shape;                    ///< extents; empty for a scalar
  int64_t begin = 0, end = 0;                    ///< byte range in the file: [begin, end)
};

/// Content of a file's header.
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;        ///< ordered by their bytes
  std::map<std::string, std::string> metadata;  ///< "__metadata__"
};

/// Length of the JSON header. start: the file's first 8 bytes, or all of a shorter file. Throws
/// Error(kDataLoss) with `origin` and byte.
int64_t safetensors_header_length(std::string_view start, int64_t file_size,
                                  const std::string& origin);

/// Parses a JSON header, which starts at byte 8, and checks it completely: well-formed tensors fill
/// the rest of the file without overlap, gap or remainder. Throws Error(kDataLoss) with `origin`
/// and the byte. Format: github.com/huggingface/safetensors; docs/reference/formats.md lists where
/// this reader is stricter.
SafetensorsHeader parse_safetensors_header(std::string_view text, int64_t file_size,
                                           const std::string& origin);

/// An open safetensors file with a checked header; read() is thread-safe.
class SafetensorsFile {
 public:
  /// Opens the file; throws Error(kDataLoss) with path and byte if it is malformed.
  explicit SafetensorsFile(std::string path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;  ///< the moved-from object can only be destroyed
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;

  const std::string& path() const { return path_; }  ///< the path given to the constructor
  const SafetensorsHeader& header() const { return header_; }   ///< entries and metadata
  const SafetensorsEntry* find(const std::string& name) const;  ///< null when absent

  /// Reads a tensor to the CPU in its stored dtype. Throws Error(kDataLoss) with file, name and
  /// byte if it is absent, or if the file has shrunk since it was opened.
  at::Tensor read(const std::string& name) const;
  /// Reads a tensor into a contiguous CPU tensor of its stored dtype and number of elements.
  void read_into(const std::string& name, const at::Tensor& to) const;
  /// At most the first `most` bytes of the tensor.
  std::string read_beginning(const std::string& name, int64_t most) const;
  /// Number of NaN elements, which are legal; 0 for integers. Reads the tensor in pieces.
  int64_t count_nan(const std::string& name) const;

 private:
  void read_bytes(int64_t begin, int64_t size, void* into, const std::string& what) const;
  const SafetensorsEntry& entry(const std::string& name) const;

  std::string path_;
  int descriptor_ = -1;
  SafetensorsHeader header_;
  std::unordered_map<std::string, size_t> index_;
};

/// Streaming writer of a safetensors file. Reserves space for the header at the start, padded with
/// spaces as the format allows. Throws Error(kDataLoss) with the file's name.
class SafetensorsWriter {
 public:
  /// Creates or truncates the file. header_bytes: space for the JSON header.
  explicit SafetensorsWriter(std::string path, int64_t header_bytes = 64 << 10);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// Whether the header has space for this tensor.
  bool has_room(const std::string& name, const at::Tensor& tensor) const;
  /// Writes a tensor of any device and layout at once.
  void add(const std::string& name, const at::Tensor& tensor);
  int64_t data_bytes() const { return offset_; }         ///< bytes of tensors written so far
  size_t tensor_count() const { return names_.size(); }  ///< tensors written so far
  /// Writes the header and syncs the file, which is invalid before.
  void finish(const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

 private:
  void write_bytes(const void* bytes, int64_t size, int64_t at);

  std::string path_;
  int descriptor_ = -1;
  int64_t header_bytes_;
  int64_t offset_ = 0;   ///< offset of the next tensor, relative to the end of the header
  std::string members_;  ///< the JSON header so far
  std::map<std::string, bool> names_;
};

/// Writes one file with these tensors in this order.
void save_safetensors(const std::string& path,
                      const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                      const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace tessera
