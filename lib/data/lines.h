#pragma once
// Files of one JSON value a line.
#include <cstdint>
#include <functional>
#include <string>

#include "tessera/core/json.h"
#include "tessera/data/dataset.h"

namespace tessera {

// Calls `row` with the value and number of every line that is not blank; errors name the file and
// the line.
void for_each_json_line(const std::string& path,
                        const std::function<void(const Json&, int64_t line)>& row,
                        const Progress& progress = {});

}  // namespace tessera
