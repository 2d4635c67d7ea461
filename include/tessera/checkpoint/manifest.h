// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// What a checkpoint says of itself: its tensors, where their pieces lie, and the run they belong
/// to. docs/reference/formats.md describes the file.
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
  std::string name;          ///< in the directory of the checkpoint
  int64_t bytes = 0;         ///< of the whole file
  int64_t header_bytes = 0;  ///< of the safetensors header with its length; pieces follow
  uint64_t header_hash = 0;  ///< XXH3 of these bytes
};

/// A piece of a tensor, in one file.
struct SavedPiece {
  size_t file = 0;               ///< index into Manifest::files
  int64_t offset = 0;            ///< first byte in the file
  TensorSlice slice;             ///< which elements of the tensor it has
  std::vector<uint64_t> hashes;  ///< XXH3 of every block of Manifest::block_bytes, the last shorter
};

/// What a tensor of the state is called.
struct TensorKey {
  std::string name, kind;                              ///< name and kind as in StateTensor
  auto operator<=>(const TensorKey&) const = default;  ///< by name, then kind
  std::string title() const { return name + " (" + kind + ")"; }  ///< for messages
};

/// A tensor of the state and where its pieces lie.
struct SavedTensor {
  at::ScalarType dtype = at::kFloat;  ///< dtype of the stored bytes
  std::vector<int64_t> shape;         ///< shape of the whole tensor
  std::vector<SavedPiece> pieces;     ///< together all elements, each once
};

/// The content of manifest.json.
struct Manifest {
  static constexpr int64_t kVersion = 1;  ///< version of the format; readers refuse newer ones
  static constexpr int64_t kBlockBytes = int64_t{1} << 20;  ///< bytes that share one hash

  int64_t step = 0;                              ///< optimizer steps made
  int64_t block_bytes = kBlockBytes;             ///< bytes that share one hash in this checkpoint
  std::map<std::string, std::string> libraries;  ///< name -> version
  std::vector<SavedFile> files;                  ///< the files of all ranks
  std::map<TensorKey, SavedTensor> tensors;      ///< the tensors by name and kind
  std::string run = "{}";                        ///< JSON object of the one who saved

  int64_t total_bytes() const;  ///< of the files

  /// Adds the files and pieces of another part of the same checkpoint. Throws Error(kInternal) when
  /// dtypes or shapes of a tensor differ.
  void merge(const Manifest& part);
  /// Throws Error(kInternal) naming the tensor when pieces overlap or leave holes.
  void check_complete() const;

  std::string to_json() const;  ///< manifest.json, with a hash of itself
  /// Refuses newer format versions, changed bytes, files outside the directory, and whatever the
  /// pieces contradict. Throws Error(kDataLoss) with `origin`, and the place in the file.
  static Manifest parse(std::string_view text, const std::string& origin);
  /// Of one rank: its pieces need not make up whole tensors.
  static Manifest parse_part(std::string_view text, const std::string& origin);
};

}  // namespace tessera
