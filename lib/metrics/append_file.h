// SPDX-License-Identifier: MIT
#pragma once
// A file that grows record by record, each of which is in it as a whole or not at all.
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::metrics {

class AppendFile {
 public:
  // Throws Error(kDataLoss) with the path and the system's reason.
  explicit AppendFile(std::string path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // The record reaches the file now. Throws Error(kDataLoss) when it cannot be written; what was
  // written of it is taken back, so that a later one may follow.
  void write(std::string_view record);

 private:
  const std::string path_;
  const int file_;
  bool torn_ = false;  // the file ends in a part of a record: nothing may follow
};

}  // namespace tessera::metrics
