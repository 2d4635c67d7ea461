// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Manifest of a checkpoint: its tensors, the locations of their pieces, and its run.
/// docs/reference/formats.md describes the file.
#include <c10/core/ScalarType.h>

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/state.h"

namespace tessera {

/// A safetensors file of a checkpoint.
struct SavedFile {
  std::string name;          ///< name in the checkpoint's directory
  int64_t bytes = 0;         ///< size of the whole file
  int64_t header_bytes = 0;  ///< size of the safetensors header with its length; pieces follow
  uint64_t header_hash = 0;  ///< XXH3 of the header bytes
};

/// A tensor's piece in one file.
struct SavedPiece {
  size_t file = 0;     ///< index into Manifest::files
  int64_t offset = 0;  ///< first byte in the file
  TensorSlice slice;   ///< elements of the tensor in it
  /// XXH3 of every block of Manifest::block_bytes; the last block may be shorter.
  std::vector<uint64_t> hashes;
};

/// Key of a state tensor.
struct TensorKey {
  std::string name, kind;                              ///< name and kind as in StateTensor
  auto operator<=>(const TensorKey&) const = default;  ///< by name, then kind
  std::string title() const { return name + " (" + kind + ")"; }  ///< for messages
};

/// A state tensor and the locations of its pieces.
struct SavedTensor {
  at::ScalarType dtype = at::kFloat;  ///< dtype of the stored bytes
  std::vector<int64_t> shape;         ///< shape of the whole tensor
  std::vector<SavedPiece> pieces;     ///< cover all elements, each once
};

/// The content of manifest.json.
struct Manifest {
  static constexpr int64_t kVersion = 1;  ///< version of the format; readers refuse newer ones
  static constexpr int64_t kBlockBytes = int64_t{1} << 20;  ///< bytes that share one hash

  int64_t step = 0;                              ///< optimizer steps done
  int64_t block_bytes = kBlockBytes;             ///< bytes that share one hash in this checkpoint
  std::map<std::string, std::string> libraries;  ///< name -> version
  std::vector<SavedFile> files;                  ///< the files of all ranks
  std::map<TensorKey, SavedTensor> tensors;      ///< the tensors by name and kind
  std::string run = "{}";                        ///< JSON object of the caller of save()

  int64_t total_bytes() const;  ///< bytes of all files

  /// Adds files and pieces of another rank's part. Throws Error(kInternal) if a tensor's dtypes or
  /// shapes differ.
  void merge(const Manifest& part);
  /// Throws Error(kInternal) with the tensor's name if pieces overlap or leave gaps.
  void check_complete() const;

  std::string to_json() const;  ///< manifest.json with its own hash
  /// Parses manifest.json. Throws Error(kDataLoss) with `origin` and place for newer format
  /// versions, changed bytes, files outside the directory, and inconsistent pieces.
  static Manifest parse(std::string_view text, const std::string& origin);
  /// Parses one rank's part, whose pieces need not cover whole tensors.
  static Manifest parse_part(std::string_view text, const std::string& origin);
};

}  // namespace tessera
