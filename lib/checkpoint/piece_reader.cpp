// SPDX-License-Identifier: MIT
#include "lib/checkpoint/piece_reader.h"

#include <algorithm>
#include <cstring>

#include "lib/core/hash.h"
#include "tessera/core/error.h"

namespace tessera {

ShardFiles::ShardFiles(const std::string& directory, const Manifest& manifest) {
  for (const SavedFile& saved : manifest.files) {
    files_.push_back(std::make_unique<RegularFile>(directory + "/" + saved.name));
    const RegularFile& file = *files_.back();
    check(static_cast<int64_t>(file.size()) == saved.bytes, ErrorCode::kDataLoss, file.path(), ": ",
          file.size(), " bytes, the manifest says ", saved.bytes,
          file.size() < static_cast<uint64_t>(saved.bytes) ? "; the file is cut short" : "");
    std::string header(static_cast<size_t>(saved.header_bytes), '\0');
    file.read(0, header.data(), header.size());
    check(xxh3_64(header.data(), header.size()) == saved.header_hash, ErrorCode::kDataLoss,
          file.path(), ": byte 0: its header of ", header.size(),
          " bytes does not have the hash of the manifest; the file is damaged");
  }
}

void PieceReader::read(const TensorKey& key, const SavedPiece& piece, int64_t piece_bytes,
                       int64_t begin, int64_t size, char* into) {
  for (int64_t at = begin; at < begin + size;) {
    const int64_t index = at / block_bytes_;
    const int64_t block_begin = index * block_bytes_;
    const int64_t block_end = std::min(block_begin + block_bytes_, piece_bytes);
    const int64_t end = std::min(begin + size, block_end);
    if (at == block_begin && end == block_end) {
      read_block(key, piece, piece_bytes, index, into + (at - begin));
    } else {
      if (piece_ != &piece || index_ != index) {
        piece_ = nullptr;
        block_.resize(static_cast<size_t>(block_bytes_));
        read_block(key, piece, piece_bytes, index, block_.data());
        piece_ = &piece;
        index_ = index;
      }
      std::memcpy(into + (at - begin), block_.data() + (at - block_begin),
                  static_cast<size_t>(end - at));
    }
    at = end;
  }
}

void PieceReader::read_block(const TensorKey& key, const SavedPiece& piece, int64_t piece_bytes,
                             int64_t index, char* into) {
  const RegularFile& file = files_.file(piece.file);
  const int64_t begin = index * block_bytes_;
  const auto size = static_cast<size_t>(std::min(block_bytes_, piece_bytes - begin));
  file.read(static_cast<uint64_t>(piece.offset + begin), into, size);
  bytes_read_ += static_cast<int64_t>(size);
  check(xxh3_64(into, size) == piece.hashes[static_cast<size_t>(index)], ErrorCode::kDataLoss,
        file.path(), ": byte ", piece.offset + begin, ": tensor ", key.title(), ": the ", size,
        " bytes from there do not have the hash of the manifest; the file is damaged");
}

}  // namespace tessera
