// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "lib/checkpoint/expert_files.h"
#include "lib/checkpoint/mxfp4.h"
#include "lib/core/folder_file.h"
#include "lib/core/hash.h"
#include "tessera/checkpoint/huggingface.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kPrefixes[] = {"transformer.", "model."};
constexpr const char *kBlocks = "_blocks", *kScales = "_scales";  // of MXFP4

// Path of a shard whose name comes from an untrusted index.
fs::path shard_path(const fs::path& directory, const Json& entry) {
  const std::string file = entry.as_string();
  const bool plain = !file.empty() && file != "." && file != ".." && file.size() <= 255 &&
                     file.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
  if (!plain) entry.fail("a shard must be the plain name of a file in the directory of the index");
  if (!file.ends_with(".safetensors")) entry.fail("a shard must be a .safetensors file");
  const fs::path path = directory / file;
  std::error_code error;
  const fs::path target = fs::canonical(path, error);
  if (error) entry.fail("the shard \"" + file + "\" is missing");
  if (!leads_out_of(directory, path).empty()) {
    entry.fail("the shard \"" + file + "\" is a link out of the directory, to " + target.string());
  }
  return path;
}

}  // namespace

HuggingFaceDirectory::HuggingFaceDirectory(const std::string& directory) : directory_(directory) {
  const fs::path root(directory);
  check(fs::is_directory(root), ErrorCode::kDataLoss, directory, ": not a directory");
  if (fs::exists(root / kSingle)) {
    open_single(file_in(directory, kSingle));
    return;
  }
  if (fs::exists(root / kIndex)) {
    open_shards(file_in(directory, kIndex));
    return;
  }
  for (const char* pickle : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    check(!fs::exists(root / pickle), ErrorCode::kDataLoss, directory,
          ": has only pickled weights (", pickle,
          "), which are never loaded because they can run code. Convert them once: python -c "
          "\"from transformers import AutoModelForCausalLM as M; M.from_pretrained('",
          directory, "').save_pretrained('converted')\"");
  }
  fail(ErrorCode::kDataLoss, directory, ": has neither ", kSingle, " nor ", kIndex);
}

void HuggingFaceDirectory::open_single(const std::string& path) {
  files_.emplace_back(path);
  for (const auto& entry : files_.back().header().entries) file_of_[entry.name] = 0;
}

void HuggingFaceDirectory::open_shards(const std::string& index_path) {
  const Json index = Json::parse_file(index_path);
  const Json map = index.at("weight_map");
  std::map<std::string, size_t> number_of;  // file name -> index
  for (const auto& [name, entry] : map.members()) {
    const fs::path path = shard_path(directory_, entry);
    const auto [found, is_new] = number_of.emplace(path.filename().string(), files_.size());
    if (is_new) files_.emplace_back(path.string());
    const SafetensorsFile& shard = files_[found->second];
    if (shard.find(name) == nullptr) {
      entry.fail("weight \"" + name + "\" is in no shard: " + shard.path() + " lacks it");
    }
    file_of_[name] = found->second;
  }
  for (size_t i = 0; i < files_.size(); ++i) {
    for (const auto& entry : files_[i].header().entries) {
      const auto found = file_of_.find(entry.name);
      check(found != file_of_.end(), ErrorCode::kDataLoss, files_[i].path(), ": tensor \"",
            entry.name, "\" is not in ", index_path);
      check(found->second == i, ErrorCode::kDataLoss, index_path, ": weight \"", entry.name,
            "\" is in two shards, ", files_[i].path(), " and ", files_[found->second].path());
    }
  }
  check(!files_.empty(), ErrorCode::kDataLoss, index_path, ": weight_map is empty");
}

const std::pair<const std::string, size_t>* HuggingFaceDirectory::locate(const std::string& name,
                                                                         bool is_again) const {
  const auto try_name = [&](const std::string& stored) {
    const auto found = file_of_.find(stored);
    return found == file_of_.end() ? nullptr : &*found;
  };
  if (const auto* exact = try_name(name)) return exact;
  for (const std::string prefix : kPrefixes) {
    const auto* found =
        name.starts_with(prefix) ? try_name(name.substr(prefix.size())) : try_name(prefix + name);
    if (found != nullptr) return found;
  }
  const std::string other = other_expert_folder(name);
  return other.empty() || is_again ? nullptr : locate(other, /*is_again=*/true);
}

std::string HuggingFaceDirectory::stored_name(const std::string& name) const {
  const auto* found = locate(name);
  return found == nullptr ? "" : found->first;
}

bool HuggingFaceDirectory::has(const std::string& name) const {
  return locate(name) != nullptr || is_by_expert(name) || locate(name + kBlocks) != nullptr;
}

at::Tensor HuggingFaceDirectory::read_mxfp4(const std::string& name, at::IntArrayRef shape) const {
  const auto* const blocks = locate(name + kBlocks);
  const auto* const scales = locate(name + kScales);
  check(scales != nullptr, ErrorCode::kDataLoss, directory_, ": weight \"", blocks->first,
        "\" has no scales \"", name, kScales, "\"");
  const SafetensorsFile& file = files_[blocks->second];
  const at::Tensor value =
      decode_mxfp4(file.read(blocks->first), files_[scales->second].read(scales->first),
                   concat(file.path(), ": weight \"", blocks->first, "\""));
  check(value.sizes() == shape, ErrorCode::kDataLoss, file.path(), ": weight \"", blocks->first,
        "\" decodes to shape ", value.sizes(), ", config.json asks for ", shape);
  return value;
}

bool HuggingFaceDirectory::is_by_expert(const std::string& name) const {
  const auto names = names_of_expert(name, 0);
  return !names.empty() && locate(names.front()) != nullptr;
}

at::Tensor HuggingFaceDirectory::read_by_expert(const std::string& name,
                                                at::IntArrayRef shape) const {
  check(shape.size() == 3, ErrorCode::kDataLoss, directory_, ": weight \"", name,
        "\" is stored by expert, config.json asks for shape ", shape);
  std::vector<std::pair<const SafetensorsFile*, const SafetensorsEntry*>> stored;
  for (int64_t expert = 0; expert < shape[0]; ++expert) {
    const auto names = names_of_expert(name, expert);
    for (const std::string& part : names) {
      const int64_t rows = shape[1] / static_cast<int64_t>(names.size());
      stored.push_back(find_stored(part, {rows, shape[2]}));
    }
  }
  const auto parts = static_cast<int64_t>(stored.size());
  const at::Tensor all = at::empty(shape, stored.front().second->dtype);
  const at::Tensor by_part = all.view({parts, -1, shape[2]});
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& [file, entry] = stored[static_cast<size_t>(i)];
      const at::Tensor part = by_part.select(0, i);
      if (entry->dtype == all.scalar_type()) {
        file->read_into(entry->name, part);
      } else {
        part.copy_(file->read(entry->name));
      }
    }
  });
  return all;
}

std::pair<const SafetensorsFile*, const SafetensorsEntry*> HuggingFaceDirectory::find_stored(
    const std::string& name, at::IntArrayRef shape) const {
  const auto* found = locate(name);
  check(found != nullptr, ErrorCode::kDataLoss, directory_, ": weight \"", name,
        "\" is missing; the weights do not belong to config.json");
  const SafetensorsFile& file = files_[found->second];
  const SafetensorsEntry& entry = *file.find(found->first);
  check(at::IntArrayRef(entry.shape) == shape, ErrorCode::kDataLoss, file.path(), ": byte ",
        entry.begin, ": weight \"", entry.name, "\" has shape ", at::IntArrayRef(entry.shape),
        ", config.json asks for ", shape);
  // Counters in a model's buffers are int64.
  check(at::isFloatingType(entry.dtype) || entry.dtype == at::kLong, ErrorCode::kDataLoss,
        file.path(), ": byte ", entry.begin, ": weight \"", entry.name,
        "\" is neither of a floating-point dtype nor int64");
  return {&file, &entry};
}

at::Tensor HuggingFaceDirectory::read(const std::string& name, at::IntArrayRef shape) const {
  if (locate(name) == nullptr) {
    if (is_by_expert(name)) return read_by_expert(name, shape);
    if (locate(name + kBlocks) != nullptr) return read_mxfp4(name, shape);
  }
  const auto [file, entry] = find_stored(name, shape);
  return file->read(entry->name);
}

std::string HuggingFaceDirectory::fingerprint() const {
  constexpr int64_t kBytes = 256;
  std::string all;
  for (const std::string& name : names()) {
    all += concat(name, '\0', files_[file_of_.at(name)].read_beginning(name, kBytes), '\0');
  }
  return xxh3_128(all.data(), all.size()).hex();
}

std::vector<std::string> HuggingFaceDirectory::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : file_of_) names.push_back(name);
  std::ranges::sort(names);
  return names;
}

}  // namespace tessera
