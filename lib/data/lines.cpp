#include "lib/data/lines.h"

#include <string_view>

#include "lib/core/file.h"

namespace tessera {
namespace {

constexpr JsonLimits kLimits;  // of a line

}  // namespace

void for_each_json_line(const std::string& path,
                        const std::function<void(const Json&, int64_t line)>& row,
                        const Progress& progress) {
  int64_t line = 0;
  std::string begun;  // of a line whose end is not read yet
  const auto parse = [&](std::string_view text) {
    ++line;
    if (text.find_first_not_of(" \t\r") == text.npos) return;
    row(Json::parse(text, kLimits, concat(path, ":", line)), line);
  };
  const auto take = [&](std::string_view piece) {
    for (size_t end = piece.find('\n'); end != piece.npos; end = piece.find('\n')) {
      if (begun.empty()) {
        parse(piece.substr(0, end));
      } else {
        parse(begun.append(piece.substr(0, end)));
        begun.clear();
      }
      piece.remove_prefix(end + 1);
    }
    begun += piece;
    check(begun.size() <= kLimits.max_bytes, ErrorCode::kDataLoss, path, ":", line + 1,
          ": a line of more than ", kLimits.max_bytes, " bytes");
  };
  for_each_piece(path, take, progress);
  if (!begun.empty()) parse(begun);
}

}  // namespace tessera
