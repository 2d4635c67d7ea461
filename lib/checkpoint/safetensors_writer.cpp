// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lib/checkpoint/safetensors_dtype.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera {
namespace {

// Bytes for "__metadata__", the braces and the padding.
constexpr int64_t kMargin = 1024;

std::string describe(const std::string& name, const at::Tensor& tensor, int64_t begin) {
  const auto dtype = safetensors_dtype_name(tensor.scalar_type());
  check(dtype.has_value(), ErrorCode::kInvalidArgument, "tensor \"", name,
        "\": safetensors has no dtype for ", tensor.scalar_type());
  JsonWriter out;
  out.begin_object().key(name).begin_object();
  out.field("dtype", *dtype).field("shape", tensor.sizes().vec());
  out.field("data_offsets",
            std::vector<int64_t>{begin, begin + static_cast<int64_t>(tensor.nbytes())});
  out.end_object().end_object();
  return out.text().substr(1, out.text().size() - 2);  // "name":{...}
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::string path, int64_t header_bytes)
    : path_(std::move(path)), header_bytes_((header_bytes + 7) / 8 * 8) {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  check(descriptor_ >= 0, ErrorCode::kDataLoss, path_,
        ": cannot be created: ", std::strerror(errno));
}

SafetensorsWriter::~SafetensorsWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool SafetensorsWriter::has_room(const std::string& name, const at::Tensor& tensor) const {
  const auto needed =
      static_cast<int64_t>(members_.size() + 1 + describe(name, tensor, offset_).size());
  return needed + kMargin <= header_bytes_;
}

void SafetensorsWriter::add(const std::string& name, const at::Tensor& tensor) {
  check(names_.emplace(name, true).second && name != "__metadata__", ErrorCode::kInvalidArgument,
        path_, ": tensor \"", name, "\" is already in the file");
  check(has_room(name, tensor), ErrorCode::kInvalidArgument, path_, ": no room for tensor \"", name,
        "\" in a header of ", header_bytes_, " bytes");
  if (!members_.empty()) members_ += ",";
  members_ += describe(name, tensor, offset_);
  const at::Tensor bytes = tensor.detach().to(at::kCPU).contiguous();
  write_bytes(bytes.const_data_ptr(), static_cast<int64_t>(bytes.nbytes()),
              8 + header_bytes_ + offset_);
  offset_ += static_cast<int64_t>(bytes.nbytes());
}

void SafetensorsWriter::finish(const std::map<std::string, std::string>& metadata) {
  JsonWriter out;
  out.begin_object();
  for (const auto& [key, value] : metadata) out.field(key, value);
  out.end_object();
  std::string header =
      concat("{\"__metadata__\":", out.text(), members_.empty() ? "" : ",", members_, "}");
  check(static_cast<int64_t>(header.size()) <= header_bytes_, ErrorCode::kInvalidArgument, path_,
        ": the header needs ", header.size(), " bytes, ", header_bytes_, " are set aside");
  header.resize(static_cast<size_t>(header_bytes_), ' ');
  std::array<char, 8> length;
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header_bytes_ >> (8 * i));
  write_bytes(length.data(), 8, 0);
  write_bytes(header.data(), header_bytes_, 8);
  const int synced = ::fsync(descriptor_), saved = errno;
  const int closed = ::close(std::exchange(descriptor_, -1));
  check(synced == 0 && closed == 0, ErrorCode::kDataLoss, path_,
        ": cannot be made durable: ", std::strerror(synced == 0 ? errno : saved));
}

void SafetensorsWriter::write_bytes(const void* bytes, int64_t size, int64_t at) {
  check(descriptor_ >= 0, ErrorCode::kInternal, path_, ": written to after finish()");
  constexpr int64_t kPiece = int64_t{1} << 30;
  for (int64_t done = 0; done < size;) {
    const ssize_t put = ::pwrite(descriptor_, static_cast<const char*>(bytes) + done,
                                 static_cast<size_t>(std::min(size - done, kPiece)), at + done);
    if (put < 0 && errno == EINTR) continue;
    check(put > 0, ErrorCode::kDataLoss, path_, ": cannot be written at byte ", at + done, ": ",
          std::strerror(put < 0 ? errno : ENOSPC));
    done += put;
  }
}

void save_safetensors(const std::string& path,
                      const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  size_t header = kMargin;
  int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    header += describe(name, tensor, offset).size() + 1;
    offset += static_cast<int64_t>(tensor.nbytes());
  }
  for (const auto& [key, value] : metadata) header += 6 * (key.size() + value.size()) + 8;
  SafetensorsWriter writer(path, static_cast<int64_t>(header));
  for (const auto& [name, tensor] : tensors) writer.add(name, tensor);
  writer.finish(metadata);
}

}  // namespace tessera
