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

/// One tensor of a file.
struct SafetensorsEntry {
  std::string name;                              ///< unique in the file
  at::ScalarType dtype = at::ScalarType::Float;  ///< dtype of the stored bytes
  std::vector<int64_t> shape;                    ///< extents; empty for a scalar
  int64_t begin = 0, end = 0;  ///< first byte in the file, and the byte behind the last
};

/// What the header says of a file.
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;        ///< in the order of their bytes
  std::map<std::string, std::string> metadata;  ///< "__metadata__"
};

/// Length of the JSON header from the file's first bytes (8, or all of a shorter file). Throws
/// Error(kDataLoss) with `origin` and byte.
int64_t safetensors_header_length(std::string_view start, int64_t file_size,
                                  const std::string& origin);

/// Checks the header completely: the tensors are well-formed and fill the rest of the file without
/// overlap, hole or remainder. `text` is the JSON header, which starts at byte 8. Throws
/// Error(kDataLoss) with `origin` and the byte of the file. The format is that of
/// github.com/huggingface/safetensors; docs/reference/formats.md lists where this reader is
/// stricter.
SafetensorsHeader parse_safetensors_header(std::string_view text, int64_t file_size,
                                           const std::string& origin);

/// An open file. Its header is checked by the constructor; read() may be called by several threads.
class SafetensorsFile {
 public:
  /// Opens the file; throws Error(kDataLoss) with path and byte for what is malformed.
  explicit SafetensorsFile(std::string path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;  ///< the other one may only be destroyed
  SafetensorsFile& operator=(SafetensorsFile&&) = delete;

  const std::string& path() const { return path_; }  ///< the path given to the constructor
  const SafetensorsHeader& header() const { return header_; }   ///< entries and metadata
  const SafetensorsEntry* find(const std::string& name) const;  ///< null when absent

  /// The tensor on the CPU in its stored dtype. Throws Error(kDataLoss) with file, name and byte
  /// when it is absent or the file has shrunk since it was opened.
  at::Tensor read(const std::string& name) const;
  /// The first bytes of the tensor, at most so many.
  std::string read_beginning(const std::string& name, int64_t most) const;
  /// Number of NaN elements, which are legal; 0 for integers. Reads the tensor piece by piece.
  int64_t count_nan(const std::string& name) const;

 private:
  void read_bytes(int64_t begin, int64_t size, void* into, const std::string& what) const;
  const SafetensorsEntry& entry(const std::string& name) const;

  std::string path_;
  int descriptor_ = -1;
  SafetensorsHeader header_;
  std::unordered_map<std::string, size_t> index_;
};

/// Writes tensors as they come; the space for the header is set aside at the start and padded with
/// spaces, which the format allows. Errors are Error(kDataLoss) with the file's name.
class SafetensorsWriter {
 public:
  /// Creates or truncates the file. header_bytes: space for the JSON header.
  explicit SafetensorsWriter(std::string path, int64_t header_bytes = 64 << 10);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// Whether the header still has room for such a tensor.
  bool has_room(const std::string& name, const at::Tensor& tensor) const;
  /// Any device and layout; the bytes are written at once.
  void add(const std::string& name, const at::Tensor& tensor);
  int64_t data_bytes() const { return offset_; }         ///< bytes of tensors written so far
  size_t tensor_count() const { return names_.size(); }  ///< tensors written so far
  /// Writes the header and makes the file durable. Without it the file is not valid.
  void finish(const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

 private:
  void write_bytes(const void* bytes, int64_t size, int64_t at);

  std::string path_;
  int descriptor_ = -1;
  int64_t header_bytes_;
  int64_t offset_ = 0;   ///< of the next tensor, relative to the end of the header
  std::string members_;  ///< the JSON header so far
  std::map<std::string, bool> names_;
};

/// One file with these tensors in this order.
void save_safetensors(const std::string& path,
                      const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                      const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace tessera
