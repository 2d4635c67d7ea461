// SPDX-License-Identifier: MIT
#include <algorithm>
#include <charconv>
#include <limits>
#include <set>
#include <utility>

#include "lib/checkpoint/manifest_seal.h"
#include "lib/checkpoint/safetensors_dtype.h"
#include "lib/checkpoint/slice_runs.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();
constexpr size_t kMaxManifest = size_t{1} << 30;
constexpr size_t kMaxName = 1024;
constexpr int64_t kMaxBlock = int64_t{1} << 26;

int64_t size_at(const Json& object, const char* key) { return object.at(key).as_int64(0, kMaxInt); }

uint64_t hash_of(const Json& value) {
  const std::string text = value.as_string();
  uint64_t hash = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  const bool good = text.size() == 16 && error == std::errc() && end == text.data() + text.size();
  if (!good) value.fail("expected a hash of 16 hexadecimal digits");
  return hash;
}

SavedFile read_file_entry(const Json& entry) {
  SavedFile file;
  file.name = entry.at("name").as_string();
  const std::string& name = file.name;
  const bool plain = name.size() <= 255 && name.starts_with("rank-") &&
                     name.ends_with(".safetensors") &&
                     name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
  if (!plain) {
    entry.at("name").fail(
        "a file must be called rank-<r>.safetensors and lie in the directory of the checkpoint");
  }
  file.bytes = size_at(entry, "bytes");
  file.header_bytes = entry.at("header_bytes").as_int64(8, file.bytes);
  file.header_hash = hash_of(entry.at("header_xxh3"));
  return file;
}

SavedPiece read_piece(const Json& entry, const SavedTensor& tensor, const Manifest& manifest) {
  SavedPiece piece;
  const auto file_count = static_cast<int64_t>(manifest.files.size());
  piece.file = static_cast<size_t>(entry.at("file").as_int64(0, file_count - 1));
  piece.offset = size_at(entry, "offset");
  TensorSlice& slice = piece.slice;
  slice.shape = tensor.shape;
  if (entry.contains("dim")) {
    slice.dim = static_cast<int>(entry.at("dim").as_int64(0, 7));
    slice.local_size = size_at(entry, "local_size");
    for (const Json& interval : entry.at("intervals").items()) {
      if (interval.size() != 3) interval.fail("expected [local, global, size]");
      slice.intervals.push_back(
          {interval.at(0).as_int64(), interval.at(1).as_int64(), interval.at(2).as_int64()});
    }
  }
  slice.begin = size_at(entry, "begin");
  slice.end = size_at(entry, "end");
  const std::string defect = slice_defect(slice);
  if (!defect.empty()) entry.fail(defect);
  int64_t bytes = 0;
  const auto width = static_cast<int64_t>(c10::elementSize(tensor.dtype));
  const int64_t room = manifest.files[piece.file].bytes;
  if (__builtin_mul_overflow(slice.numel(), width, &bytes) || bytes > room ||
      piece.offset > room - bytes) {
    entry.fail(concat("reaches past the end of ", manifest.files[piece.file].name));
  }
  for (const Json& hash : entry.at("xxh3").items()) piece.hashes.push_back(hash_of(hash));
  const int64_t blocks = bytes / manifest.block_bytes + (bytes % manifest.block_bytes != 0);
  if (static_cast<int64_t>(piece.hashes.size()) != blocks) {
    entry.fail(concat(piece.hashes.size(), " hashes, its ", bytes, " bytes need ", blocks));
  }
  return piece;
}

SavedTensor read_tensor(const Json& entry, const Manifest& manifest) {
  SavedTensor tensor;
  const auto dtype = safetensors_dtype(entry.at("dtype").as_string());
  if (!dtype) entry.at("dtype").fail("unknown dtype");
  tensor.dtype = *dtype;
  const auto extents = entry.at("shape").items();
  if (extents.size() > 8) entry.at("shape").fail("more than 8 dimensions");
  for (const Json& extent : extents) tensor.shape.push_back(extent.as_int64(0, kMaxInt));
  for (const Json& piece : entry.at("pieces").items()) {
    tensor.pieces.push_back(read_piece(piece, tensor, manifest));
  }
  return tensor;
}

// Checks that the pieces tile every file: every byte has a hash, none is covered twice.
void check_files(const Manifest& manifest, const std::string& origin) {
  std::vector<std::vector<std::pair<int64_t, int64_t>>> spans(manifest.files.size());
  for (const auto& [key, tensor] : manifest.tensors) {
    const auto width = static_cast<int64_t>(c10::elementSize(tensor.dtype));
    for (const SavedPiece& piece : tensor.pieces) {
      spans[piece.file].emplace_back(piece.offset, piece.offset + piece.slice.numel() * width);
    }
  }
  std::set<std::string> names;
  for (size_t i = 0; i < spans.size(); ++i) {
    const SavedFile& file = manifest.files[i];
    check(names.insert(file.name).second, ErrorCode::kDataLoss, origin, ": names ", file.name,
          " twice");
    std::ranges::sort(spans[i]);
    int64_t filled = file.header_bytes;
    for (const auto& [begin, end] : spans[i]) {
      check(begin == filled, ErrorCode::kDataLoss, origin, ": byte ", std::min(begin, filled),
            " of ", file.name, begin > filled ? " belongs to no piece" : " belongs to two pieces");
      filled = end;
    }
    check(filled == file.bytes, ErrorCode::kDataLoss, origin, ": byte ", filled, " of ", file.name,
          " belongs to no piece");
  }
}

}  // namespace

Manifest Manifest::parse_part(std::string_view text, const std::string& origin) {
  const Json root = Json::parse(text, {.max_bytes = kMaxManifest, .max_depth = 64}, origin);
  if (root.at("format").as_string() != "tessera.checkpoint") {
    root.at("format").fail("not the manifest of a tessera checkpoint");
  }
  const int64_t version = root.at("format_version").as_int64(1, kMaxInt);
  if (version > kVersion) {
    root.at("format_version")
        .fail(concat("written by a newer tessera: this one reads format versions up to ", kVersion,
                     "; install a newer tessera"));
  }
  check_seal(text, origin);
  Manifest manifest;
  manifest.step = size_at(root, "step");
  manifest.block_bytes = root.at("block_bytes").as_int64(8, kMaxBlock);
  if (manifest.block_bytes % 8 != 0) root.at("block_bytes").fail("not a multiple of 8");
  for (const auto& [name, of_library] : root.at("libraries").members()) {
    manifest.libraries[name] = of_library.as_string();
  }
  if (!root.at("run").is_object()) root.at("run").fail("expected an object");
  manifest.run = root.at("run").dump();
  for (const Json& entry : root.at("files").items()) {
    manifest.files.push_back(read_file_entry(entry));
  }
  for (const Json& entry : root.at("tensors").items()) {
    const TensorKey key{entry.at("name").as_string(), entry.at("kind").as_string()};
    if (key.name.size() + key.kind.size() > kMaxName) entry.fail("a name of more than 1 KiB");
    const bool is_new = manifest.tensors.emplace(key, read_tensor(entry, manifest)).second;
    if (!is_new) entry.fail("tensor " + key.title() + " is there twice");
  }
  check_files(manifest, origin);
  return manifest;
}

Manifest Manifest::parse(std::string_view text, const std::string& origin) {
  Manifest manifest = parse_part(text, origin);
  try {
    manifest.check_complete();
  } catch (const Error& error) {
    fail(ErrorCode::kDataLoss, origin, ": ", error.what());
  }
  return manifest;
}

}  // namespace tessera
