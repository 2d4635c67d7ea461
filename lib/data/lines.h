// SPDX-License-Identifier: MIT
#pragma once
// Files of one JSON value a line, or of one array.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "tessera/core/json.h"
#include "tessera/data/dataset.h"

namespace tessera {

// Calls `row` with the value and number of every line that is not blank; errors name the file and
// the line.
void for_each_json_line(const std::string& path,
                        const std::function<void(const Json&, int64_t line)>& row,
                        const Progress& progress = {});

// Calls `row` with the text of every line that is not blank, or of every item of a file that is one
// JSON array, and with its place: "file:3" or "file: item 3". Holds one of them at a time.
using TakeJsonText = std::function<void(std::string_view text, const std::string& place)>;
void for_each_json_text(const std::string& path, const TakeJsonText& row,
                        const Progress& progress = {});
// The same of a text that is there already.
void for_each_json_text_of(std::string_view content, const std::string& origin,
                           const TakeJsonText& row);

}  // namespace tessera
