// SPDX-License-Identifier: MIT
#pragma once
// The bytes of saved pieces, given out only when they have the hash of the manifest.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/core/file.h"
#include "tessera/checkpoint/manifest.h"

namespace tessera {

// The open files of a checkpoint. Throws Error(kDataLoss) naming the file that is missing, has
// another size, or whose header has changed.
class ShardFiles {
 public:
  ShardFiles(const std::string& directory, const Manifest& manifest);
  const RegularFile& file(size_t index) const { return *files_[index]; }

 private:
  std::vector<std::unique_ptr<RegularFile>> files_;
};

// Reads and checks whole blocks, also where only a part of one is asked for, and keeps the last
// one. One thread.
class PieceReader {
 public:
  PieceReader(const ShardFiles& files, int64_t block_bytes)
      : files_(files), block_bytes_(block_bytes) {}

  // Bytes [begin, begin + size) of the piece, whose tensor is named in errors. Throws
  // Error(kDataLoss) with file, byte and tensor when a block has changed.
  void read(const TensorKey& key, const SavedPiece& piece, int64_t piece_bytes, int64_t begin,
            int64_t size, char* into);
  int64_t bytes_read() const { return bytes_read_; }

 private:
  void read_block(const TensorKey& key, const SavedPiece& piece, int64_t piece_bytes, int64_t index,
                  char* into);

  const ShardFiles& files_;
  const int64_t block_bytes_;
  std::vector<char> block_;
  const SavedPiece* piece_ = nullptr;  // of block_
  int64_t index_ = 0;
  int64_t bytes_read_ = 0;
};

}  // namespace tessera
