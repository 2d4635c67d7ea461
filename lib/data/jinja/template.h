// SPDX-License-Identifier: MIT
#pragma once
// An interpreter of the Jinja subset that chat templates use, as transformers renders them: a
// sandbox with trim_blocks, lstrip_blocks, loop controls and the tag {% generation %}.
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

// What is wrong with a template whatever the chat, so that no other row would do.
struct Defect : Error {
  explicit Defect(const std::string& message) : Error(ErrorCode::kInvalidArgument, message) {}
};

struct RenderLimits {
  size_t template_bytes = size_t{1} << 20;
  size_t output_bytes = size_t{64} << 20;
  size_t steps = 5'000'000;  // of operations, and of every 16 bytes that they make
  size_t depth = 600;        // of blocks, expressions and calls in one another
};

struct MarkedText {
  size_t begin, end;  // bytes of the text
};

struct Rendered {
  std::string text;
  std::vector<MarkedText> marks;  // what stands in {% generation %}
  bool unplaced_marks = false;    // one stood in a macro or a block that is captured
};

// Immutable after parsing; threads may render one template together. Every error is an
// Error(kInvalidArgument) "origin:line: what".
class Template {
 public:
  static Template parse(std::string_view text, std::string origin, RenderLimits limits = {});
  // day: what strftime_now writes, at midnight.
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
