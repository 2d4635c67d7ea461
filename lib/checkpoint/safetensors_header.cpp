// SPDX-License-Identifier: MIT
// Validation of a safetensors header, separate from files for fuzzing.
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <limits>
#include <string>

#include "lib/checkpoint/safetensors_dtype.h"
#include "lib/core/file.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/core/error.h"
#include "tessera/core/json.h"

namespace tessera {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeader = 100'000'000;
constexpr size_t kMaxTensors = 100'000;
constexpr size_t kMaxName = 1024;
constexpr size_t kMaxRank = 8;
constexpr size_t kMaxDepth = 4;
constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();

class HeaderParser {
 public:
  HeaderParser(std::string_view text, int64_t file_size, const std::string& origin)
      : text_(text),
        data_begin_(kLengthBytes + static_cast<int64_t>(text.size())),
        data_size_(file_size - data_begin_),
        origin_(origin) {}

  SafetensorsHeader parse() {
    if (const size_t valid = utf8_valid_prefix(text_); valid < text_.size()) {
      refuse(valid, "the header is not UTF-8");
    }
    if (text_.empty() || text_.front() != '{') refuse(0, "the header must start with '{'");
    check_tail();
    const Json root = Json::parse(text_, {.max_bytes = kMaxHeader, .max_depth = kMaxDepth},
                                  origin_ + " (header, from byte 8)");
    const auto members = root.members();
    if (members.size() > kMaxTensors + 1) {
      refuse(0, concat(members.size(), " tensors; at most ", kMaxTensors, " are accepted"));
    }
    SafetensorsHeader header;
    for (const auto& [name, value] : members) {
      if (name == "__metadata__") {
        header.metadata = metadata(value);
      } else {
        header.entries.push_back(entry(name, value));
      }
    }
    check_layout(header.entries);
    return header;
  }

 private:
  // at: offset from the header's start; the message gives the offset in the file.
  [[noreturn]] void refuse(size_t at, const std::string& message) const {
    fail(ErrorCode::kDataLoss, origin_, ": byte ", kLengthBytes + static_cast<int64_t>(at), ": ",
         message);
  }

  // Only spaces may follow the object. The JSON reader checks the grammar.
  void check_tail() const {
    int64_t open = 0;
    bool in_string = false;
    size_t at = 0;
    for (; at < text_.size(); ++at) {
      const char c = text_[at];
      if (in_string) {
        if (c == '\\') ++at;
        if (c == '"') in_string = false;
      } else if (c == '"') {
        in_string = true;
      } else if (c == '{' || c == '[') {
        ++open;
      } else if ((c == '}' || c == ']') && --open == 0) {
        break;
      }
    }
    if (at >= text_.size()) return;  // never closed
    const size_t rest = text_.find_first_not_of(' ', at + 1);
    if (rest != std::string_view::npos) {
      refuse(rest, "only spaces may follow the header's closing brace");
    }
  }

  std::map<std::string, std::string> metadata(const Json& value) const {
    if (!value.is_object()) refuse(value.offset(), "__metadata__ must be an object");
    std::map<std::string, std::string> result;
    for (const auto& [key, text] : value.members()) {
      if (!text.is_string()) {
        refuse(text.offset(), concat("__metadata__ \"", key, "\" must be a string, found ",
                                     json_type_name(text.type())));
      }
      result[key] = text.as_string();
    }
    return result;
  }

  int64_t number(const Json& value) const {
    const int64_t result = value.as_int64(0, kMaxInt);
    if (text_[value.offset()] == '-') refuse(value.offset(), "-0 is no size");
    return result;
  }

  SafetensorsEntry entry(const std::string& name, const Json& value) const {
    if (name.size() > kMaxName) {
      refuse(value.offset(), concat("a tensor's name has ", name.size(), " bytes; at most ",
                                    kMaxName, " are accepted"));
    }
    const std::string where = "tensor \"" + name + "\": ";
    if (!value.is_object()) refuse(value.offset(), where + "its description must be an object");
    for (const auto& [key, member] : value.members()) {
      if (key != "dtype" && key != "shape" && key != "data_offsets") {
        refuse(member.offset(), where + "unknown key \"" + key + "\"");
      }
    }
    for (const char* key : {"dtype", "shape", "data_offsets"}) {
      if (!value.contains(key)) refuse(value.offset(), where + "\"" + key + "\" is missing");
    }
    const Json dtype = value.at("dtype"), shape = value.at("shape"),
               span = value.at("data_offsets");
    SafetensorsEntry result;
    result.name = name;
    const auto type = safetensors_dtype(dtype.as_string());
    if (!type) refuse(dtype.offset(), where + "unknown dtype \"" + dtype.as_string() + "\"");
    result.dtype = *type;
    if (shape.size() > kMaxRank) {
      refuse(shape.offset(),
             concat(where, shape.size(), " dimensions; at most ", kMaxRank, " are accepted"));
    }
    // Strides are products of extents, where 0 counts as 1.
    int64_t bytes = static_cast<int64_t>(c10::elementSize(*type)), stride = bytes;
    for (const auto& extent : shape.items()) {
      result.shape.push_back(number(extent));
      if (__builtin_mul_overflow(stride, std::max<int64_t>(result.shape.back(), 1), &stride)) {
        refuse(extent.offset(), where + "the product of its shape overflows 63 bits");
      }
      bytes *= result.shape.back();
    }
    if (span.size() != 2) {
      refuse(span.offset(), concat(where, "data_offsets must be two numbers, found ", span.size()));
    }
    const int64_t begin = number(span.at(0)), end = number(span.at(1));
    if (end < begin) {
      refuse(span.offset(),
             concat(where, "data_offsets end at ", end, " before they begin at ", begin));
    }
    if (end - begin != bytes) {
      refuse(span.offset(), concat(where, "data_offsets span ", end - begin,
                                   " bytes, but dtype and shape need ", bytes));
    }
    if (end > data_size_) {
      refuse(span.offset(), concat(where, "its data ends at byte ", end,
                                   " of the data, the file's "
                                   "last is ",
                                   data_size_, "; the file is truncated"));
    }
    result.begin = data_begin_ + begin;
    result.end = data_begin_ + end;
    return result;
  }

  void check_layout(std::vector<SafetensorsEntry>& entries) const {
    std::ranges::stable_sort(entries, [](const auto& a, const auto& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    int64_t covered = data_begin_;
    const SafetensorsEntry* previous = nullptr;
    for (const auto& entry : entries) {
      check(entry.begin >= covered, ErrorCode::kDataLoss, origin_, ": byte ", entry.begin,
            ": tensor \"", entry.name, "\" overlaps tensor \"",
            previous == nullptr ? "" : previous->name, "\", which ends at byte ", covered);
      check(entry.begin == covered, ErrorCode::kDataLoss, origin_, ": byte ", covered, ": ",
            entry.begin - covered, " bytes before tensor \"", entry.name, "\" belong to no tensor");
      covered = entry.end;
      previous = &entry;
    }
    const int64_t rest = data_begin_ + data_size_ - covered;
    check(rest == 0, ErrorCode::kDataLoss, origin_, ": byte ", covered, ": ", rest,
          " bytes follow the last tensor");
  }

  std::string_view text_;
  int64_t data_begin_, data_size_;
  const std::string& origin_;
};

}  // namespace

int64_t safetensors_header_length(std::string_view start, int64_t file_size,
                                  const std::string& origin) {
  const std::string at_zero = origin + ": byte 0: ";
  check(file_size >= kLengthBytes && start.size() >= kLengthBytes, ErrorCode::kDataLoss, at_zero,
        "the file has ", file_size,
        " bytes; a safetensors file begins with 8 bytes of header length");
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) {
    length = length << 8 | static_cast<unsigned char>(start[i]);
  }
  check(length != 0, ErrorCode::kDataLoss, at_zero, "the header length is zero");
  check(length <= static_cast<uint64_t>(kMaxInt), ErrorCode::kDataLoss, at_zero,
        "the header length ", length, " overflows; this is no safetensors file");
  check(length <= static_cast<uint64_t>(kMaxHeader), ErrorCode::kDataLoss, at_zero,
        "the header length ", length, " is over the limit of ", kMaxHeader, " bytes");
  check(static_cast<int64_t>(length) <= file_size - kLengthBytes, ErrorCode::kDataLoss, at_zero,
        "the header length ", length, " reaches past the end of the file (", file_size, " bytes)");
  return static_cast<int64_t>(length);
}

SafetensorsHeader parse_safetensors_header(std::string_view text, int64_t file_size,
                                           const std::string& origin) {
  return HeaderParser(text, file_size, origin).parse();
}

}  // namespace tessera
