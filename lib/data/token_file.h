// SPDX-License-Identifier: MIT
#pragma once
// The file behind a token cache's entry: header, words of all rows, their entries, notes.
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

// Writes the file beside its place, and renames it when it is complete. Used by one process at a
// time.
class TokenFileWriter {
 public:
  TokenFileWriter(const std::string& path, const TokenCacheEntry& entry);
  ~TokenFileWriter();  // removes what is not complete

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

// Maps the file. Why it cannot be used is left in `problem`, which stays empty for a missing one.
bool open_token_file(const std::string& path, const TokenCacheEntry& entry, TokenisedRows& rows,
                     std::string& problem);

}  // namespace tessera
