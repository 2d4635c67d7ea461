// SPDX-License-Identifier: MIT
#include "lib/core/operation_range.h"

#include <cmath>
#include <cstdlib>

#include "lib/core/number_text.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr std::string_view kPrefix = "tessera::", kOwn = "cpu::", kFlops = " flops=",
                           kBytes = " bytes=";

double number_behind(std::string_view mark, const std::string& text) {
  const size_t at = text.find(mark);
  if (at == std::string::npos) return 0;
  return leading_number(std::string_view(text).substr(at + mark.size()));
}

}  // namespace

std::string range_name(std::string_view operation, const OperationWork& work) {
  std::string name = concat(kPrefix, operation);
  if (work.flops > 0) name += concat(kFlops, std::llround(work.flops));
  if (work.bytes > 0) name += concat(kBytes, std::llround(work.bytes));
  return name;
}

std::optional<NamedWork> parse_range_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const bool own = name.starts_with(kOwn);
  const std::string text(name.substr(own ? kOwn.size() : 0));
  return NamedWork{
      .operation = text.substr(0, text.find(' ')),
      .own_code = own,
      .work = {.flops = number_behind(kFlops, text), .bytes = number_behind(kBytes, text)}};
}

void OperationRange::begin(const char* operation, const OperationWork& work) {
  function_.before(range_name(operation, work));
}

}  // namespace tessera
