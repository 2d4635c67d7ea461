#include "lib/data/lines.h"

#include <string_view>

#include "tessera/core/file.h"

namespace tessera {

void for_each_json_line(const std::string& path,
                        const std::function<void(const Json&, int64_t line)>& row) {
  const std::string bytes = read_file(path);
  std::string_view rest = bytes;
  for (int64_t line = 1; !rest.empty(); ++line) {
    const size_t end = rest.find('\n');
    const std::string_view text = rest.substr(0, end);
    rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
    if (text.find_first_not_of(" \t\r") == text.npos) continue;
    row(Json::parse(text, {}, concat(path, ":", line)), line);
  }
}

}  // namespace tessera
