// SPDX-License-Identifier: MIT
#include "lib/data/token_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr char kMagic[8] = {'t', 'e', 's', 's', 't', 'o', 'k', '\n'};
constexpr uint32_t kVersion = 1;
constexpr size_t kBuffer = size_t{4} << 20;

struct Header {
  char magic[8];
  uint32_t version, task;
  uint64_t key_high, key_low;
  uint64_t words, rows, notes_bytes;
  int64_t num_labels;
  uint64_t payload_hash;  // XXH3 of everything after the header
  uint64_t header_hash;   // XXH3 of the header before this
};
static_assert(sizeof(Header) == 80);

uint64_t hash_of(const Header& header) { return xxh3_64(&header, offsetof(Header, header_hash)); }

size_t padding_after(uint64_t words) {
  const size_t over = (sizeof(Header) + words * sizeof(int32_t)) % sizeof(TokenRowEntry);
  return over == 0 ? 0 : sizeof(TokenRowEntry) - over;
}

uint64_t entries_at(const Header& h) {
  return sizeof(Header) + h.words * sizeof(int32_t) + padding_after(h.words);
}

uint64_t size_of(const Header& h) {
  return entries_at(h) + h.rows * sizeof(TokenRowEntry) + h.notes_bytes;
}

// Prevents 64-bit overflow in sums of size_of().
bool parts_fit(const Header& h, uint64_t size) {
  return h.words <= size / sizeof(int32_t) && h.rows <= size / sizeof(TokenRowEntry) &&
         h.notes_bytes <= size;
}

// Reads all of [at, at + size); false at end of file or on error.
bool read_all(int file, void* data, size_t size, uint64_t at) {
  auto* bytes = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = ::pread(file, bytes, size, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes += got, at += static_cast<uint64_t>(got), size -= static_cast<size_t>(got);
  }
  return true;
}

// Reads through a buffer, since pages of the mapping would count as this process's memory.
bool payload_is_whole(int file, const Header& header) {
  std::string buffer(kBuffer, '\0');
  Xxh3Stream hash;
  const uint64_t end = size_of(header);
  for (uint64_t at = sizeof(Header); at < end; at += kBuffer) {
    const size_t part = std::min<uint64_t>(kBuffer, end - at);
    if (!read_all(file, buffer.data(), part, at)) return false;
    hash.update(buffer.data(), part);
  }
  return hash.digest64() == header.payload_hash;
}

// True if the rows are contiguous in the header's words. The checksum only shows that the file is
// as somebody wrote it.
bool rows_fit(int file, const Header& header, Task task) {
  std::vector<TokenRowEntry> entries(kBuffer / sizeof(TokenRowEntry));
  uint64_t next_word = 0;
  for (uint64_t row = 0; row < header.rows; row += entries.size()) {
    const size_t count = std::min<uint64_t>(entries.size(), header.rows - row);
    if (!read_all(file, entries.data(), count * sizeof(TokenRowEntry),
                  entries_at(header) + row * sizeof(TokenRowEntry))) {
      return false;
    }
    for (size_t i = 0; i < count; ++i) {
      if (entries[i].begin != next_word) return false;
      next_word += words_of(entries[i], task);
      if (next_word > header.words) return false;
    }
  }
  return next_word == header.words;
}

struct Mapping {
  void* data;
  size_t size;
  ~Mapping() { ::munmap(data, size); }
};

int create(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  check(file >= 0, ErrorCode::kDataLoss, path, ": cannot be created: ", std::strerror(errno),
        "; give another --cache_dir, or --cache_dir none");
  return file;
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (value_ >= 0) ::close(value_);
}

TokenFileWriter::TokenFileWriter(const std::string& path, const TokenCacheEntry& entry)
    : path_(path),
      unfinished_(path + ".tmp"),
      entry_(entry),
      file_(create(unfinished_)),
      entries_file_(create(path + ".rows.tmp")),
      encoder_(entry.task) {
  ::unlink((path + ".rows.tmp").c_str());
  const Header nothing{};
  write(file_.get(), &nothing, sizeof(nothing));
}

TokenFileWriter::~TokenFileWriter() {
  if (!finished_) ::unlink(unfinished_.c_str());
}

void TokenFileWriter::write(int file, const void* data, size_t size) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t put = ::write(file, bytes, size);
    if (put < 0 && errno == EINTR) continue;
    check(put > 0, ErrorCode::kDataLoss, unfinished_, ": cannot be written: ", std::strerror(errno),
          "; free some space, give another --cache_dir, or --cache_dir none");
    bytes += put, size -= static_cast<size_t>(put);
  }
}

void TokenFileWriter::add(const Example& row) {
  encoder_.add(row);
  if (encoder_.words.size() * sizeof(int32_t) >= kBuffer) flush();
}

void TokenFileWriter::flush() {
  const size_t bytes = encoder_.words.size() * sizeof(int32_t);
  write(file_.get(), encoder_.words.data(), bytes);
  payload_.update(encoder_.words.data(), bytes);
  write(entries_file_.get(), encoder_.entries.data(),
        encoder_.entries.size() * sizeof(TokenRowEntry));
  words_ += encoder_.words.size();
  rows_ += encoder_.entries.size();
  encoder_.clear();
}

void TokenFileWriter::append_entries() {
  std::string buffer(kBuffer, '\0');
  const uint64_t end = rows_ * sizeof(TokenRowEntry);
  for (uint64_t at = 0; at < end; at += kBuffer) {
    const size_t part = std::min<uint64_t>(kBuffer, end - at);
    check(read_all(entries_file_.get(), buffer.data(), part, at), ErrorCode::kDataLoss, path_,
          ".rows.tmp: cannot be read back: ", std::strerror(errno));
    payload_.update(buffer.data(), part);
    write(file_.get(), buffer.data(), part);
  }
}

void TokenFileWriter::finish(const RowFacts& facts) {
  flush();
  const std::string padding(padding_after(words_), '\0');
  payload_.update(padding.data(), padding.size());
  write(file_.get(), padding.data(), padding.size());
  append_entries();
  payload_.update(facts.notes.data(), facts.notes.size());
  write(file_.get(), facts.notes.data(), facts.notes.size());
  Header header{.version = kVersion,
                .task = static_cast<uint32_t>(entry_.task),
                .key_high = entry_.key.high,
                .key_low = entry_.key.low,
                .words = words_,
                .rows = rows_,
                .notes_bytes = facts.notes.size(),
                .num_labels = facts.num_labels,
                .payload_hash = payload_.digest64()};
  std::copy(std::begin(kMagic), std::end(kMagic), header.magic);
  header.header_hash = hash_of(header);
  check(::lseek(file_.get(), 0, SEEK_SET) == 0, ErrorCode::kDataLoss, unfinished_,
        ": cannot be written: ", std::strerror(errno));
  write(file_.get(), &header, sizeof(header));
  check(::rename(unfinished_.c_str(), path_.c_str()) == 0, ErrorCode::kDataLoss, path_,
        ": cannot be put in place: ", std::strerror(errno));
  finished_ = true;
}

bool open_token_file(const std::string& path, const TokenCacheEntry& entry, TokenisedRows& result,
                     std::string& problem) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) {
    if (errno != ENOENT) problem = std::strerror(errno);
    return false;
  }
  struct stat status {};
  Header header{};
  const auto size = ::fstat(file.get(), &status) == 0 ? static_cast<uint64_t>(status.st_size) : 0;
  if (!S_ISREG(status.st_mode) || !read_all(file.get(), &header, sizeof(header), 0) ||
      !std::equal(std::begin(kMagic), std::end(kMagic), header.magic) ||
      header.header_hash != hash_of(header)) {
    problem = "its header is not one of a token cache";
  } else if (header.version != kVersion) {
    problem = concat("it has version ", header.version, ", expected ", kVersion);
  } else if (header.key_high != entry.key.high || header.key_low != entry.key.low ||
             header.task != static_cast<uint32_t>(entry.task)) {
    problem = "it was made of another file, tokenizer or options";
  } else if (!parts_fit(header, size) || size != size_of(header)) {
    problem = concat("it has ", size, " bytes, which is not what its header says");
  } else if (!payload_is_whole(file.get(), header)) {
    problem = "its checksum is wrong";
  } else if (!rows_fit(file.get(), header, entry.task)) {
    problem = "its rows do not lie in its tokens";
  }
  if (!problem.empty()) return false;
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  check(data != MAP_FAILED, ErrorCode::kResourceExhausted, path,
        ": cannot be mapped: ", std::strerror(errno), " (", size, " bytes of address space)");
  auto mapping = std::make_shared<Mapping>(data, size);
  const auto* bytes = static_cast<const char*>(data);
  const auto* entries = reinterpret_cast<const TokenRowEntry*>(bytes + entries_at(header));
  result.facts = {header.num_labels, {bytes + size - header.notes_bytes, header.notes_bytes}};
  result.rows = {entry.task,
                 header.num_labels,
                 {entries, header.rows},
                 reinterpret_cast<const int32_t*>(bytes + sizeof(Header)),
                 std::move(mapping)};
  return true;
}

}  // namespace tessera
