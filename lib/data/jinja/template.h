// SPDX-License-Identifier: MIT
#pragma once
// Interpreter of the Jinja subset of chat templates, as transformers renders them: a sandbox with
// trim_blocks, lstrip_blocks, loop controls and the tag {% generation %}.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/data/jinja/syntax.h"
#include "lib/data/jinja/value.h"
#include "tessera/core/error.h"

namespace tessera::jinja {

// An error of a template itself, whatever the chat, so that every row would fail.
struct Defect : Error {
  explicit Defect(const std::string& message) : Error(ErrorCode::kInvalidArgument, message) {}
};

struct RenderLimits {
  size_t template_bytes = size_t{1} << 20;
  size_t output_bytes = size_t{64} << 20;
  size_t steps = 5'000'000;  // operations, plus one per 16 bytes that they make
  size_t depth = 600;        // nesting of blocks, expressions and calls
};

struct MarkedText {
  size_t begin, end;  // bytes of the text
};

struct Rendered {
  std::string text;
  std::vector<MarkedText> marks;  // text inside {% generation %}
  bool unplaced_marks = false;    // a mark was in a macro or a captured block
};

// Immutable after parsing, so threads may share a template. All errors are Error(kInvalidArgument)
// "origin:line: message".
class Template {
 public:
  static Template parse(std::string_view text, std::string origin, RenderLimits limits = {});
  // day: the date for strftime_now, at midnight.
  Rendered render(std::vector<std::pair<std::string, Value>> variables,
                  std::chrono::sys_days day) const;
  bool marks_generation() const { return marks_generation_; }
  const std::string& origin() const { return *origin_; }

 private:
  std::shared_ptr<const std::string> origin_;
  RenderLimits limits_;
  std::shared_ptr<const Body> body_;
  bool marks_generation_ = false;
};

}  // namespace tessera::jinja
