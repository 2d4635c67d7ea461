#include "tessera/core/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "tessera/core/error.h"

namespace tessera {
namespace {

struct Descriptor {
  int value;
  ~Descriptor() { ::close(value); }
};

}  // namespace

std::string read_file(const std::string& path, size_t max_bytes) {
  // O_NONBLOCK so that opening a pipe returns at once and is refused below.
  const int opened = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  check(opened >= 0, ErrorCode::kDataLoss, path, ": cannot be opened: ", std::strerror(errno));
  const Descriptor file{opened};
  struct stat status {};
  check(::fstat(file.value, &status) == 0, ErrorCode::kDataLoss, path,
        ": cannot be examined: ", std::strerror(errno));
  check(S_ISREG(status.st_mode), ErrorCode::kDataLoss, path, ": not a regular file");
  const auto size = static_cast<uint64_t>(status.st_size);
  check(size <= max_bytes, ErrorCode::kDataLoss, path, ": ", size, " bytes, at most ", max_bytes,
        " are accepted here");
  std::string bytes(size, '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const size_t wanted = std::min(bytes.size() - done, size_t{1} << 30);
    const ssize_t got = ::pread(file.value, bytes.data() + done, wanted, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    check(got >= 0, ErrorCode::kDataLoss, path, ": byte ", done,
          ": cannot be read: ", std::strerror(errno));
    check(got > 0, ErrorCode::kDataLoss, path, ": ends at byte ", done, " although it was ", size,
          " bytes long when it was opened");
    done += static_cast<size_t>(got);
  }
  return bytes;
}

size_t utf8_valid_prefix(std::string_view text) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  const size_t size = text.size();
  size_t at = 0;
  while (at < size) {
    const unsigned char lead = bytes[at];
    if (lead < 0x80) {
      ++at;
      continue;
    }
    size_t length = 0;
    unsigned char low = 0x80, high = 0xBF;  // of the second byte
    if (lead >= 0xC2 && lead <= 0xDF) {
      length = 2;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
      length = 3;
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
      length = 4;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    }
    if (length == 0 || size - at < length) return at;
    if (bytes[at + 1] < low || bytes[at + 1] > high) return at;
    for (size_t i = 2; i < length; ++i) {
      if ((bytes[at + i] & 0xC0) != 0x80) return at;
    }
    at += length;
  }
  return size;
}

void check_utf8(std::string_view text, const std::string& where) {
  const size_t valid = utf8_valid_prefix(text);
  check(valid == text.size(), ErrorCode::kDataLoss, where, ": byte ", valid,
        ": not valid UTF-8; convert the file to UTF-8");
}

}  // namespace tessera
