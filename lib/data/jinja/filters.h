// SPDX-License-Identifier: MIT
#pragma once
// The tables of filters.
#include <map>
#include <string>

#include "lib/data/jinja/evaluator.h"

namespace tessera::jinja {

using Filter = Value (*)(Evaluator&, const Value&, const Arguments&);
using Filters = std::map<std::string, Filter>;

const Filters& text_filters();
const Filters& sequence_filters();

}  // namespace tessera::jinja
