// SPDX-License-Identifier: MIT
#pragma once
// Files with one JSON value per line, or one JSON array.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "tessera/core/json.h"
#include "tessera/data/dataset.h"

namespace tessera {

// Calls `row` with the value and number of every non-blank line. Errors name file and line.
void for_each_json_line(const std::string& path,
                        const std::function<void(const Json&, int64_t line)>& row,
                        const Progress& progress = {});

// Calls `row` with the text of every non-blank line, or every item of a file that is one JSON
// array, and its position: "file:3" or "file: item 3". Holds one at a time.
using TakeJsonText = std::function<void(std::string_view text, const std::string& place)>;
void for_each_json_text(const std::string& path, const TakeJsonText& row,
                        const Progress& progress = {});
// As above, for text in memory.
void for_each_json_text_of(std::string_view content, const std::string& origin,
                           const TakeJsonText& row);

}  // namespace tessera
