// SPDX-License-Identifier: MIT
#pragma once
// File of a token cache entry: header, words of all rows, their entries, notes.
#include <cstdint>
#include <string>

#include "lib/data/token_cache.h"

namespace tessera {

class FileDescriptor {
 public:
  explicit FileDescriptor(int value = -1) : value_(value) {}
  ~FileDescriptor();
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return value_; }

 private:
  int value_;
};

// Writes a temporary file and renames it when complete. Used by one process at a time.
class TokenFileWriter {
 public:
  TokenFileWriter(const std::string& path, const TokenCacheEntry& entry);
  ~TokenFileWriter();  // removes an incomplete file

  void add(const Example& row);
  void finish(const RowFacts& facts);

 private:
  void flush();
  void write(int file, const void* data, size_t size);
  void append_entries();

  const std::string path_, unfinished_;
  const TokenCacheEntry& entry_;
  FileDescriptor file_, entries_file_;
  TokenRowEncoder encoder_;
  Xxh3Stream payload_;
  uint64_t words_ = 0, rows_ = 0;
  bool finished_ = false;
};

// Maps the file. problem: why it is unusable; empty for a missing file.
bool open_token_file(const std::string& path, const TokenCacheEntry& entry, TokenisedRows& rows,
                     std::string& problem);

}  // namespace tessera
