// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lib/core/file.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/error.h"

namespace tessera {

SafetensorsFile::SafetensorsFile(std::string path) : path_(std::move(path)) {
  // O_NONBLOCK: opening a pipe returns at once, to be rejected below.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  check(descriptor_ >= 0, ErrorCode::kDataLoss, path_,
        ": cannot be opened: ", std::strerror(errno));
  try {
    struct stat status {};
    check(::fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode), ErrorCode::kDataLoss,
          path_, ": not a regular file");
    const int64_t size = status.st_size;
    std::string start(static_cast<size_t>(std::min<int64_t>(size, 64)), '\0');
    read_bytes(0, static_cast<int64_t>(start.size()), start.data(), "the header length");
    refuse_lfs_pointer(start, path_);
    std::string text(static_cast<size_t>(safetensors_header_length(start, size, path_)), '\0');
    read_bytes(8, static_cast<int64_t>(text.size()), text.data(), "the header");
    header_ = parse_safetensors_header(text, size, path_);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
  for (size_t i = 0; i < header_.entries.size(); ++i) index_[header_.entries[i].name] = i;
}

SafetensorsFile::~SafetensorsFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      header_(std::move(other.header_)),
      index_(std::move(other.index_)) {}

const SafetensorsEntry* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.entries[found->second];
}

const SafetensorsEntry& SafetensorsFile::entry(const std::string& name) const {
  const SafetensorsEntry* found = find(name);
  check(found != nullptr, ErrorCode::kDataLoss, path_, ": has no tensor \"", name, "\"");
  return *found;
}

void SafetensorsFile::read_bytes(int64_t begin, int64_t size, void* into,
                                 const std::string& what) const {
  constexpr int64_t kPiece = int64_t{1} << 30;
  for (int64_t done = 0; done < size;) {
    const ssize_t got = ::pread(descriptor_, static_cast<char*>(into) + done,
                                static_cast<size_t>(std::min(size - done, kPiece)), begin + done);
    if (got < 0 && errno == EINTR) continue;
    check(got >= 0, ErrorCode::kDataLoss, path_, ": byte ", begin + done, ": ", what,
          " cannot be read: ", std::strerror(errno));
    check(got > 0, ErrorCode::kDataLoss, path_, ": byte ", begin + done, ": the file ends inside ",
          what, "; it has shrunk since it was opened");
    done += got;
  }
}

// One thread copies 1 to 2 GB/s from the page cache into new memory, which a disk or a link to the
// GPU exceeds.
void SafetensorsFile::read_into(const std::string& name, const at::Tensor& to) const {
  constexpr int64_t kPiece = int64_t{8} << 20;
  const SafetensorsEntry& wanted = entry(name);
  const int64_t size = wanted.end - wanted.begin;
  check(to.is_cpu() && to.is_contiguous() && static_cast<int64_t>(to.nbytes()) == size,
        ErrorCode::kInternal, path_, ": tensor \"", name, "\" of ", size, " bytes into ",
        to.nbytes());
  const std::string what = "tensor \"" + name + "\"";
  auto* const bytes = static_cast<char*>(to.mutable_data_ptr());
  at::parallel_for(0, (size + kPiece - 1) / kPiece, 1, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kPiece, end = std::min(last * kPiece, size);
    read_bytes(wanted.begin + begin, end - begin, bytes + begin, what);
  });
}

at::Tensor SafetensorsFile::read(const std::string& name) const {
  const SafetensorsEntry& wanted = entry(name);
  const bool is_bool = wanted.dtype == at::kBool;  // bytes other than 0 and 1 are possible
  const at::Tensor tensor = at::empty(wanted.shape, is_bool ? at::kByte : wanted.dtype);
  read_into(name, tensor);
  return is_bool ? tensor.ne(0) : tensor;
}

std::string SafetensorsFile::read_beginning(const std::string& name, int64_t most) const {
  const SafetensorsEntry& wanted = entry(name);
  std::string bytes(static_cast<size_t>(std::min(most, wanted.end - wanted.begin)), '\0');
  read_bytes(wanted.begin, static_cast<int64_t>(bytes.size()), bytes.data(),
             "tensor \"" + name + "\"");
  return bytes;
}

int64_t SafetensorsFile::count_nan(const std::string& name) const {
  const SafetensorsEntry& wanted = entry(name);
  if (!at::isFloatingType(wanted.dtype)) return 0;
  const auto width = static_cast<int64_t>(c10::elementSize(wanted.dtype));
  const int64_t total = (wanted.end - wanted.begin) / width;
  constexpr int64_t kPiece = int64_t{1} << 20;
  at::Tensor piece = at::empty({std::min(total, kPiece)}, wanted.dtype);
  int64_t count = 0;
  for (int64_t done = 0; done < total; done += kPiece) {
    const int64_t n = std::min(kPiece, total - done);
    read_bytes(wanted.begin + done * width, n * width, piece.mutable_data_ptr(),
               "tensor \"" + name + "\"");
    count += piece.slice(0, 0, n).to(at::kFloat).isnan().sum().item<int64_t>();
  }
  return count;
}

}  // namespace tessera
