// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "lib/checkpoint/durable.h"
#include "lib/checkpoint/unfinished_directory.h"
#include "tessera/checkpoint/huggingface.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::string shard_name(size_t number, size_t count) {
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", number + 1, count);
  return name;
}

}  // namespace

HuggingFaceWriter::HuggingFaceWriter(const std::string& directory,
                                     const HuggingFaceWriterOptions& options)
    : directory_(fs::path(directory).lexically_normal()), options_(options) {
  if (directory_.ends_with('/')) directory_.pop_back();
  check(options_.dtype == at::kFloat || options_.dtype == at::kBFloat16 ||
            options_.dtype == at::kHalf,
        ErrorCode::kInvalidArgument, directory_,
        ": weights are written as fp32, bf16 or fp16, not ", options_.dtype);
  check(options_.replaces || !fs::exists(directory_), ErrorCode::kInvalidArgument, directory_,
        ": already exists and is not overwritten; move it away or choose another name");
  temporary_ = std::make_unique<UnfinishedDirectory>(directory_);
}

HuggingFaceWriter::~HuggingFaceWriter() = default;

std::string HuggingFaceWriter::shard_path(size_t number) const {
  return temporary_->path() + "/shard-" + std::to_string(number);
}

void HuggingFaceWriter::add(const std::string& name, const at::Tensor& value) {
  store(name, value.detach().to(at::kCPU, options_.dtype).contiguous());
}

void HuggingFaceWriter::add_buffer(const std::string& name, const at::Tensor& value) {
  store(name, value.detach().to(at::kCPU));
}

void HuggingFaceWriter::store(const std::string& name, const at::Tensor& stored) {
  const auto bytes = static_cast<int64_t>(stored.nbytes());
  for (const auto& [seen, shard] : shard_of_) {
    check(seen != name, ErrorCode::kInvalidArgument, directory_, ": weight \"", name,
          "\" was added twice");
  }
  if (shard_ && shard_->tensor_count() > 0 &&
      (shard_->data_bytes() + bytes > options_.max_shard_bytes ||
       !shard_->has_room(name, stored))) {
    close_shard();
  }
  if (!shard_) {
    shard_ = std::make_unique<SafetensorsWriter>(shard_path(shard_count_), options_.header_bytes);
  }
  shard_->add(name, stored);
  shard_of_.emplace_back(name, shard_count_);
  total_bytes_ += bytes;
}

void HuggingFaceWriter::close_shard() {
  shard_->finish();
  shard_.reset();
  ++shard_count_;
}

void HuggingFaceWriter::add_text(const std::string& file_name, const std::string& content) {
  const std::string path = temporary_->path() + "/" + file_name;
  errno = 0;
  std::ofstream out(path, std::ios::binary);
  out << content;
  out.close();
  check(out.good(), ErrorCode::kDataLoss, path, ": cannot be written: ", std::strerror(errno));
  make_durable(path);
}

void HuggingFaceWriter::add_file(const std::string& source_path, const std::string& into) {
  const fs::path folder = fs::path(temporary_->path()) / into;
  const std::string path = folder / fs::path(source_path).filename();
  std::error_code error;
  fs::create_directories(folder, error);
  require_done(error, folder, "made");
  fs::copy_file(source_path, path, error);
  require_done(error, path, "copied");
  make_durable(path);
  make_durable(folder);
}

void HuggingFaceWriter::commit() {
  check(!shard_of_.empty(), ErrorCode::kInvalidArgument, directory_, ": no weights were added");
  if (shard_) close_shard();
  std::error_code error;
  for (size_t i = 0; i < shard_count_; ++i) {
    const std::string name = shard_count_ == 1 ? options_.weights : shard_name(i, shard_count_);
    fs::rename(shard_path(i), temporary_->path() + "/" + name, error);
    require_done(error, shard_path(i), "renamed");
  }
  if (shard_count_ > 1) {
    JsonWriter index(2);
    index.begin_object().key("metadata").begin_object();
    index.field("total_size", total_bytes_).end_object();
    index.key("weight_map").begin_object();
    for (const auto& [name, shard] : shard_of_) index.field(name, shard_name(shard, shard_count_));
    index.end_object().end_object();
    add_text("model.safetensors.index.json", index.text() + "\n");
  }
  temporary_->commit(options_.replaces);
}

}  // namespace tessera
