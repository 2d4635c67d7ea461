// SPDX-License-Identifier: MIT
#include "lib/data/delimited.h"

#include "lib/core/file.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

class Reader {
 public:
  Reader(std::string_view bytes, char delimiter, Quoting quoting, const std::string& path)
      : bytes_(bytes), delimiter_(delimiter), quoting_(quoting), path_(path) {
    check_utf8(bytes, path);
    if (bytes.substr(0, 3) == "\xEF\xBB\xBF") at_ = 3;  // byte-order mark
  }

  std::vector<Record> all() {
    std::vector<Record> records;
    while (at_ < bytes_.size()) {
      if (line_end()) continue;
      Record record = this->record();
      if (!records.empty() && record.fields.size() != records.front().fields.size()) {
        refuse(record.line, concat(record.fields.size(), " fields, but line ", records.front().line,
                                   " has ", records.front().fields.size()));
      }
      records.push_back(std::move(record));
    }
    return records;
  }

 private:
  [[noreturn]] void refuse(int64_t line, const std::string& message) const {
    fail(ErrorCode::kDataLoss, path_, ":", line, ": ", message, " (byte ", at_, ")");
  }

  // Skips a line end at the current position.
  bool line_end() {
    if (bytes_.substr(at_, 2) == "\r\n") {
      at_ += 2;
    } else if (bytes_[at_] == '\n') {
      ++at_;
    } else {
      return false;
    }
    ++line_;
    return true;
  }

  Record record() {
    Record record{{}, line_};
    while (true) {
      const bool quoted =
          quoting_ == Quoting::kRfc4180 && at_ < bytes_.size() && bytes_[at_] == '"';
      record.fields.push_back(quoted ? quoted_field() : plain_field());
      if (at_ == bytes_.size() || line_end()) return record;
      ++at_;  // skips the delimiter
    }
  }

  std::string quoted_field() {
    const int64_t opened = line_;
    std::string field;
    ++at_;
    while (true) {
      if (at_ == bytes_.size()) refuse(opened, "a quoted field that starts here never ends");
      const char c = bytes_[at_];
      if (c == '\0') refuse(line_, "a NUL character");
      if (c == '"') {
        if (bytes_.substr(at_, 2) != "\"\"") break;
        ++at_;
      }
      line_ += c == '\n';
      field += c;
      ++at_;
    }
    ++at_;
    const std::string_view after = bytes_.substr(at_, 2);
    if (!after.empty() && after[0] != delimiter_ && after[0] != '\n' && after != "\r\n") {
      refuse(line_, "text after a closing quote; quotes inside a field are doubled");
    }
    return field;
  }

  std::string plain_field() {
    const size_t begin = at_;
    for (; at_ < bytes_.size(); ++at_) {
      const char c = bytes_[at_];
      if (c == delimiter_ || c == '\n' || bytes_.substr(at_, 2) == "\r\n") break;
      if (c == '\0') refuse(line_, "a NUL character");
      if (c == '\r') refuse(line_, "a carriage return without a line feed");
      if (c == '"' && quoting_ == Quoting::kRfc4180) {
        refuse(line_, "a quote inside a field that does not start with one");
      }
    }
    return std::string(bytes_.substr(begin, at_ - begin));
  }

  std::string_view bytes_;
  char delimiter_;
  Quoting quoting_;
  const std::string& path_;
  size_t at_ = 0;
  int64_t line_ = 1;
};

}  // namespace

char separator_of(std::string_view bytes) {
  bool quoted = false, semicolon = false, tab = false, begun = false;
  for (const char c : bytes) {
    if (c == '"') quoted = !quoted;
    if (quoted) continue;
    if (c == ',') return ',';
    if (c == '\n' && begun) break;
    semicolon = semicolon || c == ';';
    tab = tab || c == '\t';
    begun = begun || (c != '\n' && c != '\r');
  }
  return semicolon ? ';' : tab ? '\t' : ',';
}

std::vector<Record> read_delimited(std::string_view bytes, char delimiter, Quoting quoting,
                                   const std::string& path) {
  return Reader(bytes, delimiter, quoting, path).all();
}

}  // namespace tessera
