// SPDX-License-Identifier: MIT
#pragma once
// Reads saved pieces and verifies them against the manifest's hashes.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/core/file.h"
#include "tessera/checkpoint/manifest.h"

namespace tessera {

// Open files of a checkpoint. Throws Error(kDataLoss) for a file that is missing, has another size,
// or whose header has changed.
class ShardFiles {
 public:
  ShardFiles(const std::string& directory, const Manifest& manifest);
  const RegularFile& file(size_t index) const { return *files_[index]; }

 private:
  std::vector<std::unique_ptr<RegularFile>> files_;
};

// Reads and verifies whole blocks, even if only part is wanted, and keeps the last one.
// Single-threaded.
class PieceReader {
 public:
  PieceReader(const ShardFiles& files, int64_t block_bytes)
      : files_(files), block_bytes_(block_bytes) {}

  // Reads bytes [begin, begin + size) of the piece; errors name its tensor. Throws Error(kDataLoss)
  // with file, byte and tensor when a block has changed.
  void read(const TensorKey& key, const SavedPiece& piece, int64_t piece_bytes, int64_t begin,
            int64_t size, char* into);
  int64_t bytes_read() const { return bytes_read_; }

 private:
  void read_block(const TensorKey& key, const SavedPiece& piece, int64_t piece_bytes, int64_t index,
                  char* into);

  const ShardFiles& files_;
  const int64_t block_bytes_;
  std::vector<char> block_;
  const SavedPiece* piece_ = nullptr;  // piece of block_
  int64_t index_ = 0;
  int64_t bytes_read_ = 0;
};

}  // namespace tessera
