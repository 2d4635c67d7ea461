// SPDX-License-Identifier: MIT
#include "lib/checkpoint/shard_writer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "lib/checkpoint/output_file.h"
#include "lib/checkpoint/safetensors_dtype.h"
#include "lib/checkpoint/slice_runs.h"
#include "lib/core/hash.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera {
namespace {

constexpr int64_t kPage = 4096;  // the header fills whole pages, so pieces are page-aligned
constexpr int64_t kStaging = int64_t{16} << 20;
constexpr int64_t kHeaderEntry = 160;          // upper bound without the names
constexpr int64_t kSmall = int64_t{64} << 10;  // smaller parts are not split between ranks

void check_piece(const StateTensor& tensor) {
  const std::string title = TensorKey{tensor.name, tensor.kind}.title();
  const std::string defect = slice_defect(tensor.slice);
  check(defect.empty(), ErrorCode::kInternal, "tensor ", title, ": ", defect);
  const ShardPiece piece{{}, tensor.slice, tensor.value, tensor.split};
  for (const at::Tensor* value : piece.tensors()) {
    check(value->dim() == 1 && value->is_contiguous() && value->numel() == tensor.slice.numel(),
          ErrorCode::kInternal, "tensor ", title, ": a value of shape ", value->sizes(),
          " for a slice of ", tensor.slice.numel(), " elements");
  }
}

std::string header_of(const std::vector<ShardPiece>& pieces) {
  JsonWriter out;
  out.begin_object().key("__metadata__").begin_object().field("format", "pt").end_object();
  std::map<TensorKey, int> numbers;  // number of pieces per tensor so far
  int64_t offset = 0;
  for (const ShardPiece& piece : pieces) {
    const auto dtype = safetensors_dtype_name(piece.dtype());
    check(dtype.has_value(), ErrorCode::kInvalidArgument, "tensor ", piece.key.title(),
          ": safetensors has no dtype for ", piece.dtype());
    const int64_t end = offset + piece.nbytes();
    out.key(concat(piece.key.name, "/", piece.key.kind, "/", numbers[piece.key]++));
    out.begin_object().field("dtype", *dtype);
    out.field("shape", std::vector<int64_t>{piece.slice.numel()});
    out.field("data_offsets", std::vector<int64_t>{offset, end}).end_object();
    offset = end;
  }
  std::string json = out.end_object().text();
  json.resize((json.size() + 8 + kPage - 1) / kPage * kPage - 8, ' ');
  std::string header;
  for (int shift = 0; shift < 64; shift += 8) header += static_cast<char>(json.size() >> shift);
  return header + json;
}

// Copies values of a device to the host in pieces.
class Staging {
 public:
  // Bytes of elements [begin, end), at most kStaging bytes; valid until the next call.
  const char* bytes(const ShardPiece& piece, int64_t begin, int64_t end) {
    const at::Tensor value =
        MasterValues{piece.value, piece.split}.narrow(begin, end - begin).get();
    if (piece.split.defined()) joined_ = value;
    if (value.is_cpu()) return static_cast<const char*>(value.const_data_ptr());
    if (!buffer_.defined()) {
      buffer_ = at::empty({kStaging}, at::TensorOptions(at::kByte).pinned_memory(true));
    }
    buffer_.narrow(0, 0, static_cast<int64_t>(value.nbytes())).copy_(value.view(at::kByte));
    return static_cast<const char*>(buffer_.const_data_ptr());
  }

 private:
  at::Tensor buffer_, joined_;
};

}  // namespace

std::vector<at::Tensor*> ShardPiece::tensors() {
  if (split.defined()) return {&split.rounded, &split.remainder};
  return {&value};
}

std::vector<const at::Tensor*> ShardPiece::tensors() const {
  if (split.defined()) return {&split.rounded, &split.remainder};
  return {&value};
}

std::vector<ShardPiece> pieces_to_write(const std::vector<StateTensor>& state) {
  std::vector<ShardPiece> pieces;
  for (const StateTensor& tensor : state) {
    check_piece(tensor);
    if (all_padding(tensor.slice)) continue;
    int64_t replicas = 1, index = 0;
    for (const Communicator* ranks : tensor.replicas) {
      index = index * ranks->size() + ranks->rank();
      replicas *= ranks->size();
    }
    const int64_t numel = tensor.slice.numel();
    int64_t begin = 0, end = numel;
    if (tensor.nbytes() >= replicas * kSmall) {
      begin = numel * index / replicas;
      end = numel * (index + 1) / replicas;
    } else if (xxh3_64(tensor.name.data(), tensor.name.size()) % static_cast<uint64_t>(replicas) !=
               static_cast<uint64_t>(index)) {
      continue;
    }
    StateTensor part = tensor.narrow(begin, end - begin);
    pieces.push_back({{tensor.name, tensor.kind}, std::move(part.slice), part.value, part.split});
    for (at::Tensor* value : pieces.back().tensors()) *value = value->detach();
  }
  return pieces;
}

at::Device device_of(const std::vector<ShardPiece>& pieces) {
  for (const ShardPiece& piece : pieces) {
    if (!piece.device().is_cpu()) return piece.device();
  }
  return at::kCPU;
}

int64_t shard_bytes(const std::vector<ShardPiece>& pieces) {
  int64_t bytes = kPage;
  for (const ShardPiece& piece : pieces) {
    const auto names = static_cast<int64_t>(piece.key.name.size() + piece.key.kind.size());
    bytes += names + kHeaderEntry + piece.nbytes();
  }
  return bytes;
}

Manifest write_shard(FileSystem& files, const std::string& directory, int rank,
                     const std::vector<ShardPiece>& pieces) {
  const std::string name = concat("rank-", rank, ".safetensors");
  const std::string header = header_of(pieces);
  OutputFile file(files, directory + "/" + name);
  file.append(header.data(), static_cast<int64_t>(header.size()));
  Manifest part;
  Staging staging;
  for (const ShardPiece& piece : pieces) {
    SavedPiece saved{.offset = file.size(), .slice = piece.slice};
    const auto width = static_cast<int64_t>(c10::elementSize(piece.dtype()));
    const int64_t unit = kStaging / width, numel = piece.slice.numel();
    for (int64_t done = 0; done < numel; done += unit) {
      const int64_t end = std::min(done + unit, numel);
      const char* bytes = staging.bytes(piece, done, end);
      const int64_t size = (end - done) * width;
      for (int64_t at = 0; at < size; at += part.block_bytes) {
        const int64_t block = std::min(part.block_bytes, size - at);
        saved.hashes.push_back(xxh3_64(bytes + at, static_cast<size_t>(block)));
        file.append(bytes + at, block);
      }
    }
    SavedTensor& tensor = part.tensors[piece.key];
    tensor.dtype = piece.dtype();
    tensor.shape = piece.slice.shape;
    tensor.pieces.push_back(std::move(saved));
  }
  file.finish();
  part.files.push_back({.name = name,
                        .bytes = file.size(),
                        .header_bytes = static_cast<int64_t>(header.size()),
                        .header_hash = xxh3_64(header.data(), header.size())});
  return part;
}

}  // namespace tessera
