// SPDX-License-Identifier: MIT
#pragma once
// Append-only file of records, each written completely or not at all.
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

  // Writes the record at once. Throws Error(kDataLoss) on failure and removes the partial record,
  // so that later ones may follow.
  void write(std::string_view record);

 private:
  const std::string path_;
  const int file_;
  bool torn_ = false;  // the file ends in a partial record, so nothing may follow
};

}  // namespace tessera::metrics
