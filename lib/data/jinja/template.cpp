// SPDX-License-Identifier: MIT
#include "lib/data/jinja/template.h"

#include "lib/core/file.h"
#include "lib/data/jinja/evaluator.h"
#include "lib/data/jinja/parser.h"

namespace tessera::jinja {

Template Template::parse(std::string_view text, std::string origin, RenderLimits limits) {
  Template result;
  result.origin_ = std::make_shared<const std::string>(std::move(origin));
  result.limits_ = limits;
  check(text.size() <= limits.template_bytes, ErrorCode::kInvalidArgument, *result.origin_, ": ",
        text.size(), " bytes of template, at most ", limits.template_bytes, " are accepted");
  const size_t valid = utf8_valid_prefix(text);
  check(valid == text.size(), ErrorCode::kInvalidArgument, *result.origin_, ": byte ", valid,
        " is not valid UTF-8");
  Parser parser(tokens_of(text, *result.origin_), *result.origin_);
  result.body_ = std::make_shared<const Body>(parser.run());
  result.marks_generation_ = parser.marks_generation();
  return result;
}

Rendered Template::render(std::vector<std::pair<std::string, Value>> variables,
                          std::chrono::sys_days day) const {
  return Evaluator(*origin_, limits_, day).run(*body_, std::move(variables));
}

}  // namespace tessera::jinja
