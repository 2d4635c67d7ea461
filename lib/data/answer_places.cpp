// SPDX-License-Identifier: MIT
#include "lib/data/answer_places.h"

#include <algorithm>

#include "lib/data/jinja/text.h"
#include "tessera/core/error.h"

namespace tessera {

using jinja::Value;

namespace {

size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

size_t common_suffix(std::string_view a, std::string_view b) {
  size_t count = 0;
  while (count < std::min(a.size(), b.size()) && a.rbegin()[count] == b.rbegin()[count]) ++count;
  return count;
}

// The message with `text` as its whole content.
Value saying(const Value& message, const char* text, bool keeps_calls) {
  jinja::Dict other;
  for (const auto& [key, value] : message.as_dict()->members) {
    const std::string* name = key.as_string();
    const jinja::Array* calls = value.as_array();
    if (!name || *name != "tool_calls" || !calls) {
      other.set(key, value);
    } else if (keeps_calls) {
      jinja::Values list;
      for (const Value& call : calls->items) {
        const Value* function =
            call.as_dict() ? call.as_dict()->find(std::string_view("function")) : nullptr;
        jinja::Dict said = function && function->as_dict() ? *function->as_dict()
                           : call.as_dict()                ? *call.as_dict()
                                                           : jinja::Dict();
        jinja::Dict arguments;
        arguments.set(text, text);
        said.set("name", text);
        said.set("arguments", Value::dict(std::move(arguments)));
        jinja::Dict whole = call.as_dict() ? *call.as_dict() : jinja::Dict();
        if (function) {
          whole.set("function", Value::dict(std::move(said)));
          list.push_back(Value::dict(std::move(whole)));
        } else {
          list.push_back(Value::dict(std::move(said)));
        }
      }
      other.set(key, Value::list(std::move(list)));
    }
  }
  if (!keeps_calls || other.find(std::string_view("content"))) other.set("content", text);
  for (const char* thought : {"thinking", "reasoning", "reasoning_content"}) {
    if (other.find(std::string_view(thought))) other.set(thought, text);
  }
  return Value::dict(std::move(other));
}

std::optional<std::string> rendered(const RenderChat& render, const jinja::Values& messages,
                                    bool add_generation_prompt) {
  try {
    return render(messages, add_generation_prompt);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// The span of `whole` that depends on the answer, or on its tool calls.
std::optional<TextSpan> changing(const RenderChat& render, const jinja::Values& messages,
                                 size_t turn, const std::string& whole, bool keeps_calls) {
  size_t before = whole.size(), behind = whole.size();
  jinja::Values others = messages;
  // The texts differ at both ends, so that one of them differs from any answer there.
  for (const char* text : {"0 other 0", "1 other 1"}) {
    others[turn] = saying(messages[turn], text, keeps_calls);
    const auto other = rendered(render, others, false);
    if (!other) return std::nullopt;
    before = std::min(before, common_prefix(whole, *other));
    behind = std::min(behind, common_suffix(whole, *other));
  }
  if (before + behind >= whole.size()) return std::nullopt;
  return TextSpan{before, whole.size() - behind};
}

jinja::Values first(const jinja::Values& messages, size_t count) {
  return {messages.begin(), messages.begin() + static_cast<ptrdiff_t>(count)};
}

// End of the generation prompt before the answer; empty if it is not found.
std::optional<size_t> end_of_prompt(const RenderChat& render, const jinja::Values& messages,
                                    size_t turn, const std::string& whole, size_t latest) {
  const auto prompted = rendered(render, first(messages, turn), true);
  if (!prompted) return std::nullopt;
  if (whole.starts_with(*prompted) && prompted->size() <= latest) return prompted->size();
  const auto bare = rendered(render, first(messages, turn), false);
  const std::string prompt =
      bare ? prompted->substr(common_prefix(*prompted, *bare)) : std::string();
  if (prompt.empty() || prompt.size() > latest) return std::nullopt;
  const size_t at = whole.rfind(prompt, latest - prompt.size());
  if (at == std::string::npos) return std::nullopt;
  return at + prompt.size();
}

// True if the text contains a message's content.
bool holds(std::string_view text, const Value& message) {
  const Value* content = message.as_dict()->find(std::string_view("content"));
  const std::string* said = content ? content->as_string() : nullptr;
  const std::string_view words = said ? jinja::stripped(*said, true, true) : std::string_view();
  return !words.empty() && text.find(words) != std::string_view::npos;
}

// Common start of both texts, up to the end of a tag or word if they differ after it.
std::string_view common_begin(std::string_view text, std::string_view other) {
  const std::string_view both = text.substr(0, common_prefix(text, other));
  if (both.size() == text.size() || both.size() == other.size()) return both;
  const size_t end = both.find_last_of(">]} \n");
  return both.substr(0, end == std::string_view::npos ? 0 : end + 1);
}

// Where the chat without the message differs; empty if the template rejects that chat.
std::optional<size_t> begin_of_message(const RenderChat& render, const jinja::Values& messages,
                                       size_t turn, const std::string& whole) {
  jinja::Values others = messages;
  others.erase(others.begin() + static_cast<ptrdiff_t>(turn));
  const auto other = rendered(render, others, false);
  if (!other) return std::nullopt;
  return common_begin(whole, *other).size();
}

}  // namespace

std::string_view common_end(std::string_view text, std::string_view other) {
  return jinja::stripped(common_begin(text, other), false, true);
}

std::optional<TextSpan> answer_place(const RenderChat& render, const jinja::Values& messages,
                                     size_t turn, const std::string& whole, size_t earliest) {
  bool keeps_calls = false;
  auto place = changing(render, messages, turn, whole, keeps_calls);
  if (!place) {
    keeps_calls = true;
    place = changing(render, messages, turn, whole, keeps_calls);
  }
  if (!place || place->begin < earliest) return std::nullopt;
  auto begin = end_of_prompt(render, messages, turn, whole, place->begin);
  if (!begin && keeps_calls) begin = begin_of_message(render, messages, turn, whole);
  if (begin && *begin >= earliest && *begin <= place->begin) {
    const auto between = std::string_view(whole).substr(*begin, place->begin - *begin);
    if (turn == 0 || !holds(between, messages[turn - 1])) place->begin = *begin;
  }
  const jinja::Values beginning = first(messages, turn + 1);
  const auto ended = rendered(render, beginning, false);
  const auto last = ended ? changing(render, beginning, turn, *ended, keeps_calls) : std::nullopt;
  if (last) {
    place->end += common_end(std::string_view(whole).substr(place->end),
                             std::string_view(*ended).substr(last->end))
                      .size();
  }
  return place;
}

}  // namespace tessera
