// SPDX-License-Identifier: MIT
#include <algorithm>
#include <string>

#include "lib/checkpoint/manifest_seal.h"
#include "lib/checkpoint/safetensors_dtype.h"
#include "lib/checkpoint/slice_runs.h"
#include "lib/core/hash.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera {
namespace {

void write_piece(JsonWriter& out, const SavedPiece& piece) {
  out.begin_object();
  out.field("file", piece.file).field("offset", piece.offset);
  const TensorSlice& slice = piece.slice;
  if (slice.dim >= 0) {
    out.field("dim", slice.dim).field("local_size", slice.local_size);
    out.key("intervals").begin_array();
    for (const auto& [local, global, size] : slice.intervals) {
      out.value(std::vector<int64_t>{local, global, size});
    }
    out.end_array();
  }
  out.field("begin", slice.begin).field("end", slice.end);
  out.key("xxh3").begin_array();
  for (const uint64_t hash : piece.hashes) out.value(hex64(hash));
  out.end_array().end_object();
}

}  // namespace

int64_t Manifest::total_bytes() const {
  int64_t bytes = 0;
  for (const SavedFile& file : files) bytes += file.bytes;
  return bytes;
}

void Manifest::merge(const Manifest& part) {
  const size_t first_file = files.size();
  files.insert(files.end(), part.files.begin(), part.files.end());
  for (const auto& [key, tensor] : part.tensors) {
    const auto [found, is_new] = tensors.try_emplace(key, tensor.dtype, tensor.shape);
    SavedTensor& whole = found->second;
    check(whole.dtype == tensor.dtype && whole.shape == tensor.shape, ErrorCode::kInternal,
          "tensor ", key.title(), " is ", tensor.dtype, c10::IntArrayRef(tensor.shape),
          " on one rank and ", whole.dtype, c10::IntArrayRef(whole.shape), " on another");
    for (SavedPiece piece : tensor.pieces) {
      piece.file += first_file;
      whole.pieces.push_back(std::move(piece));
    }
  }
}

void Manifest::check_complete() const {
  for (const auto& [key, tensor] : tensors) {
    std::vector<TensorSlice> slices;
    for (const SavedPiece& piece : tensor.pieces) slices.push_back(piece.slice);
    const std::string defect = tiling_defect(slices);
    check(defect.empty(), ErrorCode::kInternal, "tensor ", key.title(), ": ", defect);
  }
}

std::string Manifest::to_json() const {
  JsonWriter out;
  out.begin_object();
  out.field("format", "tessera.checkpoint").field("format_version", kVersion);
  out.field("step", step).field("block_bytes", block_bytes);
  out.key("libraries").begin_object();
  for (const auto& [name, version] : libraries) out.field(name, version);
  out.end_object();
  const Json of_run = Json::parse(run, {.error_code = ErrorCode::kInvalidArgument}, "run");
  if (!of_run.is_object()) of_run.fail("expected an object");
  out.key("run").value(of_run);
  out.key("files").begin_array();
  for (const SavedFile& file : files) {
    out.begin_object().field("name", file.name).field("bytes", file.bytes);
    out.field("header_bytes", file.header_bytes).field("header_xxh3", hex64(file.header_hash));
    out.end_object();
  }
  out.end_array();
  out.key("tensors").begin_array();
  for (const auto& [key, tensor] : tensors) {
    const auto dtype = safetensors_dtype_name(tensor.dtype);
    check(dtype.has_value(), ErrorCode::kInvalidArgument, "tensor ", key.title(),
          ": safetensors has no dtype for ", tensor.dtype);
    out.begin_object().field("name", key.name).field("kind", key.kind);
    out.field("dtype", *dtype).field("shape", tensor.shape);
    out.key("pieces").begin_array();
    for (const SavedPiece& piece : tensor.pieces) write_piece(out, piece);
    out.end_array().end_object();
  }
  out.end_array().end_object();
  return sealed(out.text());
}

}  // namespace tessera
